"""`POST /pooling` as vLLM serves it for models with an IO processor: a scene in, a GeoTIFF out, in one request."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse, StreamingResponse

from penstock.api.facades.abilities import Ability
from penstock.api.facades.calls import Call, TheCall, require_success
from penstock.api.facades.media import decoded, take_in
from penstock.api.facades.pooling_forms import (
    PoolingData,
    answer_bytes,
    in_its_words,
    job_request,
    raster_of,
    read_pooling,
)
from penstock.errors import InputError
from penstock.jobs import Job

#: What `Retry-After` says of a job that is not over in time.
RETRY_AFTER_S = 30

router = APIRouter(tags=["facades"], include_in_schema=False)


@router.post("/pooling")
async def pool(call: TheCall) -> Response:
    """Run a scene through a model and answer its raster; 202 with the job where that takes longer than `facade_wait_s`.

    The job is canceled when the client leaves before, unless the request has an `Idempotency-Key`.
    """
    body = await call.body()
    wanted = read_pooling(body)
    entry = await call.model(wanted.model, Ability.POOLING)
    scene = await _scene(call, wanted.data)
    job = await call.ended(await call.submit(body, job_request(entry, wanted.data, scene)))
    if not job.status.terminal:
        return _accepted(call, job)
    try:
        raster = raster_of(require_success(job))
    except InputError as error:
        raise in_its_words(error, wanted.data) from error
    headers = {"x-request-id": job.key.id}
    chunks = answer_bytes(job.key.id, job.created_s, call.api.objects.read(raster.key))
    return StreamingResponse(chunks, media_type="application/json", headers=headers)


async def _scene(call: Call, wanted: PoolingData) -> str:
    """Return the reference of what a request brings: a URL is fetched by the worker, through the guard."""
    if wanted.data_format == "url":
        return wanted.data
    data = decoded(wanted.data, "/data/data")
    return await take_in(call.api, call.tenant, data, "scene.tif", "image/tiff")


def _accepted(call: Call, job: Job) -> JSONResponse:
    headers = {
        "Location": f"{call.api.settings.base_url}/v1/jobs/{job.key.id}",
        "Retry-After": str(RETRY_AFTER_S),
        "x-request-id": job.key.id,
    }
    return JSONResponse(call.api.view(job).model_dump(mode="json", by_alias=True), 202, headers)
