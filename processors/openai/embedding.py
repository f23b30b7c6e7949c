"""Embeddings of texts by a server that speaks OpenAI's protocol."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import ProcessorFailed
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result, final_outputs
from penstock.processors.embedding import OUTPUT_NAME, SPECS, embedding_result
from penstock.processors.limits import check_items
from penstock.processors.openai.body import parameters
from penstock.processors.openai.options import options_of
from penstock.processors.openai.request import EmbeddingRequest, request_for
from penstock.processors.openai.text import ANSWER_NAME, ASKED, BODY_NAME, MEDIA_NAME, ROUTE_NAME
from penstock.views import View

#: Texts of one request to the server, at most.
TEXTS = 32


@dataclass(slots=True)
class OpenAIEmbeddingContext:
    """Request state for `post_process`."""

    #: Numbers of the texts of each prompt.
    counts: Sequence[int]
    outputs: tuple[str, ...]


class OpenAIEmbedding:
    """The processor of embeddings: `POST /embeddings`."""

    request: type[EmbeddingRequest] = EmbeddingRequest
    outputs = SPECS
    views = (View("vectors", "/embeddings"),)
    io_signatures = (ASKED,)

    def __init__(self, model: Model) -> None:
        self._model = model
        self.request = request_for(EmbeddingRequest, options_of(model))

    def pre_process(self, request: EmbeddingRequest, media: Media) -> Prepared[OpenAIEmbeddingContext]:  # noqa: ARG002
        """Return a prompt for every 32 texts."""
        texts = [request.texts] if isinstance(request.texts, str) else request.texts
        check_items(len(texts), self._model.limits, "/input/texts", "texts")
        parts = [texts[at : at + TEXTS] for at in range(0, len(texts), TEXTS)]
        body = {name: value for name, value in parameters(request).items() if name not in ("texts", "outputs")}
        prompts = (
            Prompt({ROUTE_NAME: "embeddings", BODY_NAME: {**body, "input": part}, MEDIA_NAME: []}, len(part))
            for part in parts
        )
        return Prepared(
            prompts, len(parts), len(texts), OpenAIEmbeddingContext([len(part) for part in parts], request.outputs)
        )

    def post_process(self, outputs: Iterator[Output], context: OpenAIEmbeddingContext, sink: ArtifactSink) -> Result:
        """Return `{"count", "dimensions", "embeddings", "usage"}`."""
        tokens: list[int] = []
        data = embedding_result(_vectors(outputs, context.counts, tokens), context.outputs, sink)
        return Result(data={**data, "usage": {"prompt_tokens": sum(tokens)}})

    def dummy(self, limits: Limits, folder: Path) -> Dummy:  # noqa: ARG002
        """Return a short text."""
        return Dummy({"texts": ["Hello"]})


def _vectors(outputs: Iterator[Output], counts: Sequence[int], tokens: list[int]) -> Iterator[Output]:
    """Yield one output per text, in order, and add the tokens of each answer."""
    for output, count in zip(final_outputs(outputs), counts, strict=True):
        answer: Mapping[str, Any] = output.data[ANSWER_NAME]
        rows = answer.get("data")
        if not isinstance(rows, list) or len(rows) != count:
            raise ProcessorFailed(f"the server answered {count} texts with another number of embeddings")
        used = (answer.get("usage") or {}).get("prompt_tokens", 0)
        tokens.append(used if isinstance(used, int) else 0)
        for row in sorted(rows, key=lambda row: row.get("index", 0)):
            yield Output({OUTPUT_NAME: np.asarray(row["embedding"], np.float32)})
