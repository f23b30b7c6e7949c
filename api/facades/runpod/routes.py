"""RunPod's API for a model: `/run`, `/runsync`, `/status`, `/stream`, `/cancel`, `/health`, `/purge-queue`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field, StringConstraints

from penstock.api.auth import Key, Tenant
from penstock.api.facades.calls import Call, CurrentCall
from penstock.api.facades.openai.answers import UnsentText
from penstock.api.routes import jobs
from penstock.api.routes.events import events_so_far
from penstock.api.routes.queues import cancel_waiting
from penstock.api.schemas.jobs import JobView
from penstock.api.services import Api, Services
from penstock.errors import ExecutionTimeout, UnknownJob
from penstock.intake.submissions import servable
from penstock.jobs import Job, JobEvent, JobKey, Status
from penstock.json_body import validated
from penstock.models import CatalogueEntry
from penstock.requests import DAY_S, Incoming, JobRequest, WebhookRequest
from penstock.storage.journal import journal
from penstock.storage.journal.promotions import models_behind
from penstock.storage.redis import queues, streaming
from penstock.storage.redis.queues import OwnJobs

_STATES: Mapping[Status, str] = MappingProxyType(
    {
        Status.QUEUED: "IN_QUEUE",
        Status.RUNNING: "IN_PROGRESS",
        Status.SUCCEEDED: "COMPLETED",
        Status.FAILED: "FAILED",
        Status.CANCELED: "CANCELLED",
        Status.EXPIRED: "TIMED_OUT",
    }
)


class Policy(Incoming):
    """RunPod's `policy`: times in milliseconds."""

    executionTimeout: Annotated[int, Field(ge=1000, le=7 * DAY_S * 1000)] | None = None  # noqa: N815  (RunPod's name)
    ttl: Annotated[int, Field(gt=0, le=30 * DAY_S * 1000)] | None = None
    lowPriority: bool = False  # noqa: N815  (RunPod's name)


class RunRequest(Incoming):
    """The body of `/run` and `/runsync`."""

    input: dict[str, Any]
    webhook: Annotated[str, StringConstraints(min_length=1, max_length=2048)] | None = None
    policy: Policy = Policy()


def job_request(entry: CatalogueEntry, wanted: RunRequest) -> JobRequest:
    """Return a run as a job of the model."""
    policy = wanted.policy
    return JobRequest(
        model=entry.name,
        input=wanted.input,
        webhook=None if wanted.webhook is None else WebhookRequest(url=wanted.webhook),
        priority="low" if policy.lowPriority else "normal",
        queue_ttl=None if policy.ttl is None else policy.ttl / 1000,
        execution_timeout=None if policy.executionTimeout is None else policy.executionTimeout / 1000,
    )


def state(view: JobView) -> str:
    """Return a job's state in RunPod's words."""
    if view.error is not None and view.error.code == ExecutionTimeout.code:
        return "TIMED_OUT"
    return _STATES.get(view.status, "IN_PROGRESS")


def answer(view: JobView) -> dict[str, Any]:
    """Return a job as `/run`, `/runsync`, `/status` and `/cancel` do; the output of a job is an object."""
    found: dict[str, Any] = {"id": view.id, "status": state(view)}
    metrics = view.metrics or {}
    if "queue_ms" in metrics:
        found["delayTime"] = round(metrics["queue_ms"])
    if view.started_at is not None and view.completed_at is not None:
        found["executionTime"] = round((view.completed_at - view.started_at).total_seconds() * 1000)
    if view.attempts:
        found["workerId"] = view.attempts[-1].worker
    if view.status is Status.SUCCEEDED:
        found["output"] = output(view)
    if view.error is not None:
        found["error"] = f"{view.error.code}: {view.error.detail}"
    return found


def output(view: JobView) -> dict[str, Any]:
    """Return the parts that a result has: `text`, `json`, and `artifacts` with their links."""
    said = view.output.model_dump(mode="json", by_alias=True) if view.output else {}
    found = {name: value for name, value in said.items() if value is not None}
    if view.artifacts:
        found["artifacts"] = [artifact.model_dump(mode="json") for artifact in view.artifacts]
    return found


def pieces(view: JobView, events: Iterable[JobEvent], sent: int) -> tuple[list[dict[str, Any]], int]:
    """Return the pieces of a job's stream after the first `sent` characters, and the new number.

    A result without a text is one piece, which counts as one character.
    """
    unsent = UnsentText(sent)
    found = [piece for event in events if (piece := unsent.delta(event))]
    text = None if view.output is None else view.output.text
    if view.status is Status.SUCCEEDED and text is None:
        return ([], sent) if sent else ([{"output": output(view)}], 1)
    if text is not None and (rest := unsent.rest(text)):
        found.append(rest)
    return [{"output": piece} for piece in found], unsent.sent_chars


def health(own: OwnJobs) -> dict[str, Any]:
    """Return a tenant's jobs of a model and the workers; ended jobs are not counted.

    A worker counts as running where it holds a job of the tenant: those of other tenants are not shown.
    """
    busy = min(own.busy, own.workers)
    workers = {"idle": own.workers - busy, "running": busy, "ready": own.workers - busy}
    none = dict.fromkeys(("initializing", "throttled", "unhealthy"), 0)
    jobs = {"inQueue": own.queued, "inProgress": own.running}
    return {"jobs": {"completed": 0, "failed": 0, "retried": 0, **jobs}, "workers": {**workers, **none}}


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
    return {"removed": await cancel_waiting(api, entry.queue, tenant, model=entry.name), "status": "completed"}


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
