"""The text embedding processor: texts in, one vector each out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from penstock.errors import InvalidInput
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result
from penstock.processors.directory import check_options
from penstock.processors.embedding import SPECS, hand_over
from penstock.processors.inputs import INPUTS
from penstock.processors.language.request import TextEmbeddingRequest
from penstock.processors.language.tokens import Tokens, read_vocabulary
from penstock.processors.limits import check_items, dummy_items

#: The network's input: int64 (tokens,).
INPUT_NAME = "input_ids"
#: Of a model that sets no bound.
_DUMMY_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Context:
    """What `post_process` needs of the first half."""

    outputs: tuple[str, ...]
    tokens: int
    truncated: list[int] = field(default_factory=list)


class TextEmbedding:
    """Embeds texts; what is longer than the model takes is cut, and the result names the texts that were."""

    request = TextEmbeddingRequest
    outputs = SPECS

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model)
        self._vocabulary = read_vocabulary(model, truncate=True)

    def pre_process(self, request: TextEmbeddingRequest, media: Media) -> Prepared[Context]:
        """Return one prompt per text."""
        texts = self._texts(request, media)
        tokens = [self._vocabulary.cut(text) for text in texts]
        for index, text in enumerate(tokens):
            if not text.ids:
                raise InvalidInput(f"Text {index} is empty.")
        cost = sum(len(text.ids) for text in tokens)
        truncated = [index for index, text in enumerate(tokens) if text.truncated]
        return Prepared(_prompts(tokens), len(texts), cost, Context(request.outputs, cost, truncated), unit="texts")

    def post_process(self, outputs: Iterator[Output], context: Context, sink: ArtifactSink) -> Result:
        """Return `{"count", "dimensions", "embeddings", "truncated", "usage"}`; `truncated` has indices of texts."""
        data = hand_over(outputs, context.outputs, sink)
        return Result(data={**data, "truncated": context.truncated, "usage": {"prompt_tokens": context.tokens}})

    def dummy(self, limits: Limits, folder: Path) -> Dummy:  # noqa: ARG002
        """Return a batch of texts of the greatest length."""
        words = self._vocabulary.max_tokens or _DUMMY_TOKENS
        return Dummy({"texts": ["a " * words] * dummy_items(self._model, limits)})

    def _texts(self, request: TextEmbeddingRequest, media: Media) -> Sequence[str]:
        limits = self._model.limits
        if request.files is not None:
            check_items(len(request.files), limits, "/input/files", "files")
            return [INPUTS.read("text", media.path(file), limits) for file in request.files]
        texts = [request.texts] if isinstance(request.texts, str) else request.texts or []
        check_items(len(texts), limits, "/input/texts", "texts")
        return texts


def _prompts(texts: Sequence[Tokens]) -> Iterator[Prompt]:
    for text in texts:
        yield Prompt({INPUT_NAME: np.asarray(text.ids, dtype=np.int64)}, cost=len(text.ids))
