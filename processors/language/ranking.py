"""Text ranking: scores how well documents answer a query, by a network that reads both together (a cross-encoder)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from penstock.errors import ModelUnavailable
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Result, final_outputs
from penstock.processors.directory import check_options, read_config
from penstock.processors.language.classification import (
    SCORED,
    TextClassificationContext,
    counted,
    cut,
    prompt_of,
    usage,
)
from penstock.processors.language.request import TextRankingRequest
from penstock.processors.language.tokens import Tokens, read_vocabulary
from penstock.processors.limits import check_items, dummy_items
from penstock.processors.outputs import OUTPUTS
from penstock.processors.vision.classes import Classes
from penstock.views import View

#: Activations that sentence-transformers stores in `config.json` -> True for scores as they are.
_ACTIVATIONS = {"torch.nn.modules.linear.Identity": True, "torch.nn.modules.activation.Sigmoid": False}
_DUMMY_TOKENS = 512


class TextRanking:
    """The text ranking processor. Pairs beyond the model's maximum length are cut; the result names them.

    Scores are those of sentence-transformers' `CrossEncoder`: the sigmoid of the logit, or the activation that
    `config.json` names.
    """

    request = TextRankingRequest
    outputs = (OUTPUTS.spec("scores", "the result: a score for each document, and their order", kind="json"),)
    views = (View("rows", "/scores"),)
    io_signatures = (SCORED,)

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model)
        self._vocabulary = read_vocabulary(model, truncate=True)
        self._reads_types = _reads_types(model)
        _require_one_label(model)
        self._raw = _is_raw(model)

    def pre_process(self, request: TextRankingRequest, media: Media) -> Prepared[TextClassificationContext]:  # noqa: ARG002
        """Return one prompt per document."""
        pairs = request.pairs
        check_items(len(pairs), self._model.limits, "/input/documents", "documents")
        tokens = [self._tokens(query, document, request) for query, document in pairs]
        context = TextClassificationContext(counted(tokens, "Pair"), request.raw, truncated=cut(tokens))
        return Prepared(map(prompt_of, tokens), len(pairs), context.tokens, context, unit="documents")

    def post_process(self, outputs: Iterator[Output], context: TextClassificationContext, sink: ArtifactSink) -> Result:  # noqa: ARG002
        """Return `{"scores", "ranking", "truncated", "usage"}`; `ranking` has the documents' indices, best first."""
        score = Classes({}, multi_label=False, raw=self._raw or context.raw)
        scores = [float(score.scores(output)[0]) for output in final_outputs(outputs)]
        ranking = sorted(range(len(scores)), key=lambda index: -scores[index])
        return Result(data={"scores": scores, "ranking": ranking, **usage(context)})

    def dummy(self, limits: Limits, folder: Path) -> Dummy:  # noqa: ARG002
        """Return a full batch of documents of the maximum length."""
        words = self._vocabulary.max_tokens or _DUMMY_TOKENS
        return Dummy({"queries": "a", "documents": ["a " * words] * dummy_items(self._model, limits)})

    def _tokens(self, query: str, document: str, request: TextRankingRequest) -> Tokens:
        if request.max_query_tokens is not None:
            query = self._vocabulary.shortened(query, request.max_query_tokens)
        if request.max_document_tokens is not None:
            document = self._vocabulary.shortened(document, request.max_document_tokens)
        pair = self._vocabulary.cut_pair(query, document)
        return pair if self._reads_types else Tokens(pair.ids, pair.truncated)


def _reads_types(model: Model) -> bool:
    """Return False for a network whose tokenizer leaves out the parts of a pair."""
    return "token_type_ids" in read_config(model, "tokenizer_config.json").get("model_input_names", ["token_type_ids"])


def _require_one_label(model: Model) -> None:
    config = read_config(model)
    labels = config.get("id2label")
    count = len(labels) if isinstance(labels, dict) else config.get("num_labels", 2)  # the library's default
    if count != 1:
        raise ModelUnavailable(
            f"model {model.name!r}: its network has {count} labels, and ranking needs one score for each document; "
            'for classes of texts set `processor = "text-classification"`'
        )


def _is_raw(model: Model) -> bool:
    config = read_config(model)
    own = config.get("sentence_transformers")
    named = own.get("activation_fn") if isinstance(own, dict) else None
    named = named or config.get("sbert_ce_default_activation_function")
    if named is None:
        return False
    if named not in _ACTIVATIONS:
        raise ModelUnavailable(
            f"model {model.name!r}: config.json has the activation {named!r}; known ones: {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[named]
