"""Zero-shot classification: scores how well each of the job's labels fits each image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidInput, Issue, ModelUnavailable, ProcessorFailed
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result, final_outputs
from penstock.processors.directory import check_options, read_config
from penstock.processors.io_signature import IOSignature
from penstock.processors.language.tokens import read_vocabulary
from penstock.processors.limits import dummy_items
from penstock.processors.outputs import OUTPUTS
from penstock.processors.vision.preprocessor import read_preprocessor
from penstock.processors.vision.prompts import PIXELS, open_images, write_dummy
from penstock.processors.vision.request import ZeroShotClassificationRequest
from penstock.views import View

#: Model type whose texts are always padded to full length, because the network reads the last position. Its scores are
#: independent; those of other types add up to 1.
_SIGMOID = "siglip"
#: Maximum tokens per text where `config.json` has none: the defaults of transformers.
_MAX_TOKENS: Mapping[str, int] = {"siglip": 64}
_OTHER_MAX_TOKENS = 77


@dataclass(frozen=True, slots=True)
class ZeroShotClassificationContext:
    """Request state for `post_process`."""

    labels: tuple[str, ...]
    top_k: int


class ZeroShotClassification:
    """The zero-shot classification processor: scores how well each label, put into a sentence, fits each image.

    CLIP's scores are probabilities that add up to 1. SigLIP's scores are independent, and all may be near 0.
    """

    request = ZeroShotClassificationRequest
    outputs = (OUTPUTS.spec("labels", "the result: each image's labels and scores, best first", kind="json"),)
    views = (View("labels", "/images/*/labels", "image"),)
    io_signatures = (
        IOSignature(
            prompt={"input_ids": "int64 (tokens)"},
            output={"embedding": "array (dimensions)", "scale": "number", "bias": "number"},
        ),
        IOSignature(prompt=PIXELS, output={"embedding": "array (dimensions)"}),
    )

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model, "preprocessor")
        self._preprocessor = read_preprocessor(model)
        self._vocabulary = read_vocabulary(model, truncate=False)
        config = read_config(model)
        kind, text = str(config.get("model_type")), config.get("text_config") or {}
        self._sigmoid = kind == _SIGMOID
        bounds = (
            self._vocabulary.max_tokens,
            text.get("max_position_embeddings", _MAX_TOKENS.get(kind, _OTHER_MAX_TOKENS)),
        )
        self._max_tokens = min(int(bound) for bound in bounds if bound is not None)
        self._padding = self._padding_token(text) if self._sigmoid else None

    def pre_process(
        self, request: ZeroShotClassificationRequest, media: Media
    ) -> Prepared[ZeroShotClassificationContext]:
        """Return one prompt per label, then one per image."""
        limits = self._model.limits
        images = open_images(request.references, media, self._preprocessor, limits)
        texts = [
            self._tokens(request.template.replace("{}", label), index) for index, label in enumerate(request.labels)
        ]
        prompts = chain(
            (Prompt({"input_ids": ids}, cost=len(ids)) for ids in texts), images.prompts(self._preprocessor, limits)
        )
        cost = images.cost + sum(len(ids) for ids in texts)
        context = ZeroShotClassificationContext(tuple(request.labels), request.top_k or len(request.labels))
        return Prepared(prompts, len(texts) + len(images.sources), cost, context, unit="labels and images")

    def post_process(
        self,
        outputs: Iterator[Output],
        context: ZeroShotClassificationContext,
        sink: ArtifactSink,  # noqa: ARG002
    ) -> Result:
        """Return `{"images": [{"labels": [{"id", "label", "score"}, ...]}, ...]}` in the order of the images.

        A label's `id` is its index in the request.
        """
        answers = final_outputs(outputs)
        texts = list(islice(answers, len(context.labels)))
        if len(texts) != len(context.labels):
            raise ProcessorFailed(
                f"The engine answered {len(texts)} times; expected an answer for each of {len(context.labels)} labels."
            )
        vectors = np.stack([_vector(text) for text in texts])
        scale, bias = float(texts[0].data["scale"]), float(texts[0].data["bias"])
        images = [self._named(vectors @ _vector(image) * scale + bias, context) for image in answers]
        return Result(data={"images": images})

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return a full batch of copies of one image and of one label."""
        count = dummy_items(self._model, limits)
        request = {"images": ["media://dummy"] * count, "labels": ["a"] * min(count, 1000), "template": "{}"}
        return Dummy(request, {"media://dummy": write_dummy(folder, limits)})

    def _tokens(self, sentence: str, index: int) -> npt.NDArray[np.int64]:
        ids = self._vocabulary.encode(sentence)
        if len(ids) > self._max_tokens:
            detail = f"label {index} makes a text of {len(ids)} tokens; this model accepts at most {self._max_tokens}"
            raise InvalidInput(detail, errors=[Issue(f"/input/labels/{index}", detail)])
        if self._padding is not None:
            ids = [*ids, *[self._padding] * (self._max_tokens - len(ids))]
        return np.asarray(ids, dtype=np.int64)

    def _padding_token(self, text: Mapping[str, Any]) -> int:
        named = read_config(self._model, "tokenizer_config.json").get("pad_token")
        named = named.get("content") if isinstance(named, dict) else named
        found = self._vocabulary.tokenizer.token_to_id(named) if isinstance(named, str) else text.get("pad_token_id", 1)
        if not isinstance(found, int):
            raise ModelUnavailable(f"model {self._model.name!r}: tokenizer.json lacks the padding token {named!r}")
        return found

    def _named(
        self, logits: npt.NDArray[np.float64], context: ZeroShotClassificationContext
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        if not np.isfinite(logits).all():
            raise ProcessorFailed("The network answered NaN or infinite numbers.")
        raised = np.exp(logits - logits.max())
        scores = 0.5 * (1 + np.tanh(logits / 2)) if self._sigmoid else raised / raised.sum()
        best = np.argsort(-scores, kind="stable")[: context.top_k]
        return {"labels": [{"id": int(i), "label": context.labels[i], "score": float(scores[i])} for i in best]}


def _vector(output: Output) -> npt.NDArray[np.float64]:
    vector = np.asarray(output.data["embedding"], dtype=np.float64)
    if vector.ndim != 1:
        raise ProcessorFailed(f"The network answered {vector.shape}; expected a vector.")
    return vector
