"""Routes of vLLM for models of one pass: `/pooling`, `/score`, `/rerank` and `/classify`.

`/pooling` runs a scene and returns a GeoTIFF, runs any plugin, or embeds texts and images. The others return scores of
pairs of texts, and classes of texts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse, StreamingResponse

from penstock.api.facades.calls import Call, CurrentCall, json_answer, require_success
from penstock.api.facades.capabilities import Capability
from penstock.api.facades.media import store_upload
from penstock.api.facades.openai.answers import JobResult
from penstock.api.facades.pooling import scoring
from penstock.api.facades.pooling.forms import (
    PoolingData,
    PoolingRequest,
    answer_bytes,
    in_client_terms,
    job_request,
    raster_artifact,
    read_pooling,
    takes_scenes,
)
from penstock.api.facades.pooling.plugins import answer_of, plugin_job
from penstock.api.facades.pooling.texts import TextPoolingRequest, is_text, pool_texts, read_texts
from penstock.errors import InputError
from penstock.intake.inline_media import decode_base64
from penstock.jobs import Job
from penstock.models import CatalogueEntry
from penstock.requests import JobRequest

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
        return await _run_plugin(call, body.fingerprint, await plugin_job(call, entry, wanted.data))
    data = wanted.scene()
    scene = await _scene(call, data)
    job = await call.wait_for_end(await call.submit(body.fingerprint, job_request(entry, data, scene)))
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


async def _scene(call: Call, wanted: PoolingData) -> str:
    """Return the reference of the scene. The worker fetches a URL through the guard."""
    if wanted.data_format == "url":
        return wanted.data
    data = decode_base64(wanted.data, "/data/data")
    return await store_upload(call.api, call.tenant, data, "scene.tif", "image/tiff")


def _accepted(call: Call, job: Job) -> JSONResponse:
    headers = {
        "Location": f"{call.api.settings.base_url}/v1/jobs/{job.key.id}",
        "Retry-After": str(RETRY_AFTER_S),
        "x-request-id": job.key.id,
    }
    return JSONResponse(call.api.view(job).model_dump(mode="json", by_alias=True), 202, headers)
