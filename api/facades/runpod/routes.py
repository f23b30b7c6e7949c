"""RunPod's API for a model: `/run`, `/runsync`, `/status`, `/stream`, `/cancel`, `/health`, `/purge-queue`."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query

from penstock.api.auth import Key, Tenant
from penstock.api.facades.calls import Call, CurrentCall
from penstock.api.facades.runpod.answers import RunRequest, answer, health, job_request, pieces, state
from penstock.api.routes import jobs
from penstock.api.routes.events import events_so_far
from penstock.api.services import Api, Services
from penstock.errors import JobGone, UnknownJob
from penstock.intake.submissions import servable
from penstock.jobs import Job, JobKey
from penstock.json_body import validated
from penstock.models import CatalogueEntry
from penstock.requests import DAY_S
from penstock.storage.journal import journal
from penstock.storage.journal.promotions import models_behind
from penstock.storage.redis import queues, streaming

#: Waiting jobs that one call cancels, at most, and how many at a time.
MAX_PURGED, CONCURRENCY = 500, 16

router = APIRouter(prefix="/runpod/v2/{endpoint}", tags=["facades"], include_in_schema=False)


@router.post("/run")
async def run(endpoint: str, call: CurrentCall) -> dict[str, Any]:
    """Submit a job to the model and return its id and state."""
    return await _answer(call.api, await _submitted(endpoint, call))


@router.post("/runsync")
async def run_sync(
    endpoint: str, call: CurrentCall, wait: Annotated[int, Query(ge=1000, le=300_000)] = 60_000
) -> dict[str, Any]:
    """Submit a job and return it when it has ended or after `wait` milliseconds (55,000 at most)."""
    job = await _submitted(endpoint, call)
    return await _answer(call.api, await jobs.wait_for_end(call.api, job.key, wait / 1000))


@router.get("/status/{job_id}")
async def read_status(endpoint: str, key: Key, api: Api) -> dict[str, Any]:
    """Return a job's state and output."""
    return await _answer(api, await _job(api, endpoint, key))


@router.get("/stream/{job_id}")
async def read_stream(endpoint: str, key: Key, api: Api) -> dict[str, Any]:
    """Return the pieces of a job's text that no earlier call returned; a result without a text is one piece."""
    job = await _job(api, endpoint, key)
    sent = await api.jobs.run(streaming.streamed(key))
    events = [event async for event in events_so_far(api, key)]
    view = api.view(await api.whole(job))
    found, now_sent = pieces(view, events, sent)
    if now_sent > sent:
        await api.jobs.run(streaming.note_streamed(key, now_sent, for_s=DAY_S))
    return {"status": state(view), "stream": found}


@router.post("/cancel/{job_id}")
async def cancel(endpoint: str, key: Key, api: Api) -> dict[str, Any]:
    """Cancel a job."""
    await _job(api, endpoint, key)
    return await _answer(api, await api.journal.run(journal.cancel(key)))


@router.post("/retry/{job_id}")
async def retry(endpoint: str, key: Key, api: Api) -> dict[str, Any]:
    """Submit the request of a failed job as a new job and return that."""
    await _job(api, endpoint, key)
    submitted = await api.journal.run(journal.retry(key, jobs.retry_key(key), api.limits))
    jobs.announce(api, submitted)
    return await _answer(api, submitted.job)


@router.get("/health")
async def read_health(endpoint: str, api: Api, tenant: Tenant) -> dict[str, Any]:
    """Return the tenant's jobs of the model, and the workers of the model's queue."""
    entry = await _entry(api, endpoint)
    return health(await api.jobs.run(queues.own_jobs(entry.queue, tenant, entry.name)))


@router.post("/purge-queue")
async def purge_queue(endpoint: str, api: Api, tenant: Tenant) -> dict[str, Any]:
    """Cancel the tenant's waiting jobs of the model, at most 500 per call."""
    entry = await _entry(api, endpoint)
    gate = asyncio.Semaphore(CONCURRENCY)

    async def cancel(key: JobKey) -> bool:
        async with gate:
            try:
                return (await api.journal.run(journal.cancel(key))).status.terminal
            except (UnknownJob, JobGone):
                return False

    keys = await api.jobs.run(queues.waiting(entry.queue, tenant, MAX_PURGED, model=entry.name))
    removed = sum(await asyncio.gather(*map(cancel, keys)))
    return {"removed": removed, "status": "completed"}


async def _submitted(endpoint: str, call: Call) -> Job:
    body = await call.read(partial(validated, RunRequest))
    entry = servable(endpoint, await call.api.models.read(endpoint), call.key.id)
    return await call.submit(body.fingerprint, job_request(entry, body.value))


async def _entry(api: Services, endpoint: str) -> CatalogueEntry:
    return servable(endpoint, await api.models.read(endpoint))


async def _job(api: Services, endpoint: str, key: JobKey) -> Job:
    """Return a job of the endpoint; raise `UnknownJob` for one of another model."""
    job = await api.journal.run(journal.read(key))
    model = job.submission.model
    if model != endpoint and model not in models_behind(await api.models.read(endpoint), endpoint):
        raise UnknownJob
    return job


async def _answer(api: Services, job: Job) -> dict[str, Any]:
    return answer(api.view(await api.whole(job)))
