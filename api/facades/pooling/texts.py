"""Texts and images at `/pooling`: vLLM's forms with `input` or `messages`. One vector comes back for each."""

from __future__ import annotations

from typing import Any, Literal

from fastapi.responses import JSONResponse

from penstock.api.facades.calls import Call, json_answer
from penstock.api.facades.capabilities import Capability, capabilities_of
from penstock.api.facades.openai import answers, chat_images, requests
from penstock.api.facades.openai.answers import JobResult
from penstock.api.facades.pooling import scoring
from penstock.json_body import validated

#: Fields of vLLM's text requests.
FIELDS = ("input", "messages")


class TextPoolingRequest(requests.EmbeddingRequest, scoring.Common):
    """A request for the vectors of texts or of a message."""

    truncate_prompt_tokens: Literal[-1] | None = None


def is_text(body: Any) -> bool:
    """Return True for a request with texts or messages instead of `data`."""
    return isinstance(body, dict) and "data" not in body and not body.keys().isdisjoint(FIELDS)


def read_texts(body: Any) -> TextPoolingRequest:
    """Return the request; raise `InvalidRequest`."""
    requests.read_embedding(body)
    return validated(TextPoolingRequest, body)


async def pool_texts(call: Call, fingerprint: str, wanted: TextPoolingRequest) -> JSONResponse:
    """Return the embeddings of texts or images, or the scores of classes of texts."""
    entry = await call.model(wanted.model, Capability.EMBEDDING, Capability.CLASSIFICATION)
    if Capability.CLASSIFICATION in capabilities_of(entry):
        asked = scoring.read_classify({**wanted.model_dump(exclude_none=True)})
        job = await call.wait_for_result(await call.submit(fingerprint, scoring.classify_job(entry, asked)))
        result = JobResult.of(job)
        answers.require_whole(result, wanted.truncate_prompt_tokens is not None)
        vectors = [probs for _, probs in scoring.classes_of(result)]
        rows = [{"index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    else:
        chat_images.check(entry, wanted.messages or ())
        job = await call.wait_for_result(await call.submit(fingerprint, requests.embedding_job(entry, wanted)))
        result = JobResult.of(job)
        rows = answers.embeddings(
            result, encoding=wanted.encoding_format, dimensions=wanted.dimensions,
            truncated=wanted.truncate_prompt_tokens is not None,
        )["data"]  # fmt: skip
    content = {
        "id": f"pool-{result.job_id}",
        "object": "list",
        "created": int(result.created_s),
        "model": result.model,
        "data": [{"index": row["index"], "object": "pooling", "data": row["embedding"]} for row in rows],
        "usage": scoring.usage(result),
    }
    return json_answer(job, content)
