"""Routes of vLLM for models of one pass: `/pooling`, `/score`, `/rerank` and `/classify`.

`/pooling` runs a scene and returns a GeoTIFF, runs any plugin, or embeds texts and images. The others return scores of
pairs of texts, and classes of texts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse, StreamingResponse

from penstock.api.facades.calls import Call, CurrentCall, json_answer, require_success
from penstock.api.facades.capabilities import Capability, capabilities_of
from penstock.api.facades.openai import answers, requests
from penstock.api.facades.openai.answers import JobResult
from penstock.api.facades.pooling import scoring
from penstock.api.facades.pooling.forms import (
    PoolingRequest,
    answer_bytes,
    answer_of,
    in_client_terms,
    job_request,
    plugin_job,
    raster_artifact,
    read_pooling,
    takes_scenes,
)
from penstock.errors import InputError
from penstock.jobs import Job
from penstock.json_body import validated
from penstock.models import CatalogueEntry
from penstock.requests import JobRequest

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
        requests.check_images(entry, wanted.messages or ())
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


#: Seconds of `Retry-After` for a job that has not ended in time.
RETRY_AFTER_S = 30

ScoringT = TypeVar("ScoringT", bound=scoring.Common)

router = APIRouter(tags=["facades"], include_in_schema=False)


@router.post("/pooling")
async def pool(call: CurrentCall) -> Response:
    """Run a model on a scene and return the raster, run a plugin, or return vectors of texts and images.

    A scene that takes longer than `facade_wait_s` is answered 202 with the job.

    The job is canceled when the client disconnects, unless the request has an `Idempotency-Key`.
    """
    body = await call.read(_read)
    wanted = body.value
    if isinstance(wanted, TextPoolingRequest):
        return await pool_texts(call, body.fingerprint, wanted)
    entry = await call.model(wanted.model, Capability.POOLING)
    if not takes_scenes(entry):
        return await _run_plugin(call, body.fingerprint, plugin_job(entry, wanted.data))
    data = wanted.scene()
    job = await call.wait_for_end(await call.submit(body.fingerprint, job_request(entry, data)))
    if not job.status.terminal:
        return _accepted(call, job)
    try:
        raster = raster_artifact(require_success(job))
    except InputError as error:
        raise in_client_terms(error, data) from error
    headers = {"x-request-id": job.key.id}
    chunks = answer_bytes(job.key.id, job.created_s, call.api.objects.read(raster.key))
    return StreamingResponse(chunks, media_type="application/json", headers=headers)


@router.post("/v1/score")
@router.post("/score")
async def score(call: CurrentCall) -> JSONResponse:
    """Score pairs of texts, by a cross-encoder or by the cosine of embeddings."""
    return await _scored(call, scoring.read_score, Capability.SCORING, scoring.ranking_job, scoring.score)


@router.post("/v2/rerank")
@router.post("/v1/rerank")
@router.post("/rerank")
async def rerank(call: CurrentCall) -> JSONResponse:
    """Rank documents by a query, the best first."""
    return await _scored(call, scoring.read_rerank, Capability.SCORING, scoring.ranking_job, scoring.rerank)


@router.post("/classify")
async def classify(call: CurrentCall) -> JSONResponse:
    """Classify texts."""
    return await _scored(call, scoring.read_classify, Capability.CLASSIFICATION, scoring.classify_job, scoring.classify)


async def _scored(
    call: Call,
    read: Callable[[Any], ScoringT],
    capability: Capability,
    job_of: Callable[[CatalogueEntry, ScoringT], JobRequest],
    answer: Callable[[JobResult, ScoringT], dict[str, Any]],
) -> JSONResponse:
    """Run the job of a request and return its answer."""
    body = await call.read(read)
    entry = await call.model(body.value.model, capability)
    job = await call.wait_for_result(await call.submit(body.fingerprint, job_of(entry, body.value)))
    return json_answer(job, answer(JobResult.of(job), body.value))


async def _run_plugin(call: Call, fingerprint: str, wanted: JobRequest) -> Response:
    """Return the answer of a plugin; 202 with the job where it takes longer than `facade_wait_s`."""
    job = await call.wait_for_end(await call.submit(fingerprint, wanted))
    if not job.status.terminal:
        return _accepted(call, job)
    chunks = answer_of(require_success(job), call.api.objects.read)
    return StreamingResponse(chunks, media_type="application/json", headers={"x-request-id": job.key.id})


def _read(body: Any) -> PoolingRequest | TextPoolingRequest:
    return read_texts(body) if is_text(body) else read_pooling(body)


def _accepted(call: Call, job: Job) -> JSONResponse:
    headers = {
        "Location": f"{call.api.settings.base_url}/v1/jobs/{job.key.id}",
        "Retry-After": str(RETRY_AFTER_S),
        "x-request-id": job.key.id,
    }
    return JSONResponse(call.api.view(job).model_dump(mode="json", by_alias=True), 202, headers)
