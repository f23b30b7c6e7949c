"""Text embedding: turns each text into a vector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from penstock.errors import InvalidInput
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result
from penstock.processors.directory import check_options
from penstock.processors.embedding import OUTPUT_NAME, SPECS, embedding_result
from penstock.processors.inputs import INPUTS
from penstock.processors.io_signature import IOSignature
from penstock.processors.language.prompts import read_prompts
from penstock.processors.language.request import TextEmbeddingRequest, with_prompts
from penstock.processors.language.tokens import Tokens, read_vocabulary
from penstock.processors.limits import check_items, dummy_items
from penstock.views import View

#: The network's input: int64 (tokens,).
INPUT_NAME = "input_ids"
#: The number of tokens at the beginning that do not count in the pooling: those of a prompt.
SKIPPED_NAME = "prompt_tokens"
#: Length of the warm-up's texts for models without a maximum.
_DUMMY_TOKENS = 512

_SIGNATURE = IOSignature(prompt={INPUT_NAME: "int64 (tokens)"}, output={OUTPUT_NAME: "array (dimensions)"})


@dataclass(frozen=True, slots=True)
class TextEmbeddingContext:
    """Request state for `post_process`."""

    outputs: tuple[str, ...]
    tokens: int
    truncated: list[int] = field(default_factory=list)


class TextEmbedding:
    """The text embedding processor. Texts beyond the model's maximum length are cut; the result names them.

    A model's prompts (see `read_prompts`) are applied as by sentence-transformers: the prompt of the request, else the
    model's default prompt, comes before each text.
    """

    request: type[TextEmbeddingRequest] = TextEmbeddingRequest
    views = (View("vectors", "/embeddings"),)
    outputs = SPECS
    io_signatures: tuple[IOSignature, ...] = (_SIGNATURE,)

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model)
        self._vocabulary = read_vocabulary(model, truncate=True)
        self._prompts = read_prompts(model)
        self.request = with_prompts(TextEmbeddingRequest, tuple(self._prompts.named))
        if not self._prompts.pooled:
            self.io_signatures = (
                _SIGNATURE.model_copy(update={"prompt": {**_SIGNATURE.prompt, SKIPPED_NAME: "number"}}),
            )

    def pre_process(self, request: TextEmbeddingRequest, media: Media) -> Prepared[TextEmbeddingContext]:
        """Return one prompt per text."""
        texts = self._texts(request, media)
        tokens, beginning = self._encode(request, texts)
        skipped = {} if self._prompts.pooled else {SKIPPED_NAME: beginning}
        for index, text in enumerate(tokens):
            if len(text.ids) <= sum(skipped.values()):
                raise InvalidInput(f"Text {index} is empty.")
        cost = sum(len(text.ids) for text in tokens)
        truncated = [index for index, text in enumerate(tokens) if text.truncated]
        context = TextEmbeddingContext(request.outputs, cost, truncated)
        return Prepared(_prompts(tokens, skipped), len(texts), cost, context, unit="texts")

    def post_process(self, outputs: Iterator[Output], context: TextEmbeddingContext, sink: ArtifactSink) -> Result:
        """Return `{"count", "dimensions", "embeddings", "truncated", "usage"}`; `truncated` has indices of texts."""
        data = embedding_result(outputs, context.outputs, sink)
        return Result(data={**data, "truncated": context.truncated, "usage": {"prompt_tokens": context.tokens}})

    def dummy(self, limits: Limits, folder: Path) -> Dummy:  # noqa: ARG002
        """Return a full batch of texts of the maximum length."""
        words = self._vocabulary.max_tokens or _DUMMY_TOKENS
        return Dummy({"texts": ["a " * words] * dummy_items(self._model, limits)})

    def _encode(self, request: TextEmbeddingRequest, texts: Sequence[str]) -> tuple[list[Tokens], int]:
        """Return the tokens of the texts with their prompt, and the number of the prompt's tokens."""
        if request.prompt is not None:  # a user's text, as the rest
            prompt = self._vocabulary.plain(request.prompt)
            tokens = [self._vocabulary.cut(request.prompt + text) for text in texts]
        else:
            prompt = self._prompts.of(self._model, request.prompt_name)
            tokens = [self._vocabulary.cut(text, prompt=prompt) for text in texts]
        return tokens, self._vocabulary.beginning(prompt)

    def _texts(self, request: TextEmbeddingRequest, media: Media) -> Sequence[str]:
        limits = self._model.limits
        if request.files is not None:
            check_items(len(request.files), limits, "/input/files", "files")
            return [INPUTS.read("text", media.path(file), limits) for file in request.files]
        texts = [request.texts] if isinstance(request.texts, str) else request.texts or []
        check_items(len(texts), limits, "/input/texts", "texts")
        return texts


def _prompts(texts: Sequence[Tokens], skipped: Mapping[str, int]) -> Iterator[Prompt]:
    for text in texts:
        yield Prompt({INPUT_NAME: np.asarray(text.ids, dtype=np.int64), **skipped}, cost=len(text.ids))
