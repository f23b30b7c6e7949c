"""Text classification: turns texts into the most likely classes of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from penstock.errors import InvalidInput
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result, final_outputs
from penstock.processors.directory import check_options, read_config
from penstock.processors.io_signature import IOSignature
from penstock.processors.language.request import TextClassificationRequest
from penstock.processors.language.tokens import Tokens, read_vocabulary
from penstock.processors.limits import check_items, dummy_items
from penstock.processors.outputs import OUTPUTS
from penstock.processors.vision.classes import OUTPUT_NAME, read_classes
from penstock.views import View

#: The network's inputs: int64 (tokens,) each. The second one has the parts of a pair of texts.
INPUT_NAME, TYPES_NAME = "input_ids", "token_type_ids"
#: Length of the warm-up's texts for models without a maximum.
_DUMMY_TOKENS = 512

SCORED = IOSignature(
    prompt={INPUT_NAME: "int64 (tokens)"},
    optional={TYPES_NAME: "int64 (tokens)"},
    output={OUTPUT_NAME: "array (classes)"},
)


@dataclass(frozen=True, slots=True)
class TextClassificationContext:
    """Request state for `post_process`."""

    tokens: int
    raw: bool
    top_k: int = 0
    truncated: list[int] = field(default_factory=list)


class TextClassification:
    """The text classification processor. Texts beyond the model's maximum length are cut; the result names them.

    Scores are those of the library's pipeline: they add up to 1; those of multi-label models or of one class are
    independent, and those of a regression (`problem_type`) are the network's own.
    """

    request = TextClassificationRequest
    outputs = (OUTPUTS.spec("labels", "the result: classes and scores of each text, best first", kind="json"),)
    views = (View("labels", "/texts/*/labels", "text"),)
    io_signatures = (SCORED,)

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model, "labels")
        self._vocabulary = read_vocabulary(model, truncate=True)
        regression = read_config(model).get("problem_type") == "regression"
        self._classes = replace(read_classes(model), raw=regression)

    def pre_process(self, request: TextClassificationRequest, media: Media) -> Prepared[TextClassificationContext]:  # noqa: ARG002
        """Return one prompt per text."""
        texts = [request.texts] if isinstance(request.texts, str) else request.texts
        check_items(len(texts), self._model.limits, "/input/texts", "texts")
        tokens = [self._vocabulary.cut(text) for text in texts]
        context = TextClassificationContext(counted(tokens, "Text"), request.raw, request.top_k, cut(tokens))
        return Prepared(map(prompt_of, tokens), len(texts), context.tokens, context, unit="texts")

    def post_process(self, outputs: Iterator[Output], context: TextClassificationContext, sink: ArtifactSink) -> Result:  # noqa: ARG002
        """Return `{"texts": [{"labels": [{"id", "label", "score"}, ...]}, ...], "truncated", "usage"}`."""
        classes = replace(self._classes, raw=True) if context.raw else self._classes
        scores = (classes.scores(output) for output in final_outputs(outputs))
        found = [{"labels": classes.best(one, context.top_k)} for one in scores]
        return Result(data={"texts": found, **usage(context)})

    def dummy(self, limits: Limits, folder: Path) -> Dummy:  # noqa: ARG002
        """Return a full batch of texts of the maximum length."""
        words = self._vocabulary.max_tokens or _DUMMY_TOKENS
        return Dummy({"texts": ["a " * words] * dummy_items(self._model, limits)})


def prompt_of(text: Tokens) -> Prompt:
    """Return the prompt of a text or of a pair."""
    data = {INPUT_NAME: np.asarray(text.ids, dtype=np.int64)}
    if any(text.types):
        data[TYPES_NAME] = np.asarray(text.types, dtype=np.int64)
    return Prompt(data, cost=len(text.ids))


def counted(texts: Sequence[Tokens], name: str) -> int:
    """Return the number of all tokens; raise `InvalidInput` for a text without any."""
    for index, text in enumerate(texts):
        if not text.ids:
            raise InvalidInput(f"{name} {index} is empty.")
    return sum(len(text.ids) for text in texts)


def cut(texts: Sequence[Tokens]) -> list[int]:
    """Return the indices of the texts that were too long."""
    return [index for index, text in enumerate(texts) if text.truncated]


def usage(context: TextClassificationContext) -> dict[str, object]:
    """Return `truncated`, the indices of texts that were cut, and the `usage` of a result."""
    return {"truncated": context.truncated, "usage": {"prompt_tokens": context.tokens}}
