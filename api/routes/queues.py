"""Queues: depth, throughput, and the operations for operators; and the live workers."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from difflib import get_close_matches
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import AliasPath, BeforeValidator, Field

from penstock.api.auth import Tenant
from penstock.api.errors import problems
from penstock.api.routes.jobs import log_submitted, retry_key
from penstock.api.schemas.jobs import JobView, Outgoing, Time
from penstock.api.services import Api, Services
from penstock.errors import JobGone, ObjectStoreUnavailable, UnknownJob, UnknownQueue, UnknownWorker
from penstock.jobs import JobKey, QueueMode
from penstock.storage.journal import journal, queue_modes
from penstock.storage.redis import queues, workers


class QueueView(Outgoing):
    """A queue's depth and throughput, the signals for autoscaling."""

    name: str
    queued: int
    running: int
    oldest_age_s: float
    throughput_per_s: float = Field(description="Recently succeeded jobs per second.")
    workers: int = Field(description="Live workers: seen within about three polls and not stopped.")
    slots: int
    eta_s: float | None = Field(
        description="Estimated seconds until the last waiting job ends (its `eta_seconds`). 0 without waiting jobs."
    )
    #: `paused`: workers get no jobs; `draining`: new jobs are rejected.
    mode: QueueMode
    #: Jobs that failed because their workers died too often, without the retried ones.
    dead_letters: int
    wanted_workers: int = Field(
        description="Workers that the queue wants now, within the bounds of `scaling`: the lower one without work."
    )


class ServedModelView(Outgoing):
    """A model that a worker serves."""

    name: str
    ready: bool
    #: True while the weights are on the device.
    loaded: bool
    #: Prompts in its latest batch; null before the first.
    batch_size: int | None
    #: Bytes of cached image encodings; null without such a cache.
    encoder_cache_bytes: int | None


def _in_state(name: str) -> AliasPath:
    return AliasPath("state", name)


class WorkerView(Outgoing):
    """A live worker, seen within about three polls. The worker reports all fields but `running`."""

    id: str
    host: str = Field(validation_alias=_in_state("host"))
    #: Id of its process on the host; null from a release that does not report it.
    pid: int | None = Field(validation_alias=_in_state("pid"))
    #: `draining`: the worker claims no more jobs.
    state: Annotated[
        Literal["serving", "draining"], BeforeValidator(lambda draining: "draining" if draining else "serving")
    ] = Field(validation_alias=_in_state("draining"))
    queues: list[str] = Field(validation_alias=_in_state("queues"))
    slots: int = Field(validation_alias=_in_state("slots"))
    #: Jobs that the worker holds.
    running: int
    #: `cpu`, or the name of the accelerator.
    device: str = Field(validation_alias=_in_state("device"))
    models: list[ServedModelView] = Field(validation_alias=_in_state("models"))
    started_at: Time = Field(validation_alias=_in_state("started_s"))


class WorkerList(Outgoing):
    """The workers, oldest first."""

    workers: list[WorkerView]


class WorkerLineView(Outgoing):
    """A log line of a worker."""

    #: Time by the worker's clock.
    at: Time = Field(validation_alias="at_s")
    level: str
    #: The line, without secrets; of a traceback its last line.
    text: str


class WorkerLineList(Outgoing):
    """The latest log lines of a worker, the oldest first."""

    lines: list[WorkerLineView]


class QueueList(Outgoing):
    """The queues, sorted by name."""

    queues: list[QueueView]


class PurgeView(Outgoing):
    """The number of canceled waiting jobs; `more` is true where jobs still wait."""

    canceled: int
    more: bool


class DeadLetterList(Outgoing):
    """Jobs that failed because their workers died too often, newest first."""

    jobs: list[JobView]


class RequeueView(Outgoing):
    """The new jobs; `more` is true where dead letters remain."""

    jobs: list[JobView]
    more: bool


#: Jobs of one purge or requeue. The response says if more remain.
MAX_JOBS = 500
#: Concurrent cancellations of a purge.
CONCURRENCY = 16

router = APIRouter(prefix="/v1/queues", tags=["queues"], responses=problems(404, 503))
workers_router = APIRouter(prefix="/v1/workers", tags=["queues"], responses=problems(503))


async def _known(name: str, api: Api) -> str:
    await _view(api, name)
    return name


Queue = Annotated[str, Depends(_known)]


@router.get("")
async def list_queues(api: Api) -> QueueList:
    """List the queues, sorted by name, with depth and throughput."""
    names = sorted(await api.jobs.run(queues.known_queues()) | await _catalogued(api))
    found = await asyncio.gather(*(api.jobs.run(queues.queue_stats(name)) for name in names))
    return QueueList(queues=[_view_of(api, name, stats) for name, stats in zip(names, found, strict=True)])


@router.get("/{name}")
async def read_queue(name: str, api: Api) -> QueueView:
    """Return a queue's depth and throughput, and the number of workers that it wants: the signals for autoscaling."""
    return await _view(api, name)


@router.post("/{name}/pause")
async def pause_queue(name: Queue, api: Api) -> QueueView:
    """Pause a queue: workers get no more of its jobs. New jobs are accepted; running jobs continue."""
    return await _set_mode(api, name, QueueMode.PAUSED)


@router.post("/{name}/drain")
async def drain_queue(name: Queue, api: Api) -> QueueView:
    """Drain a queue: new jobs are rejected (503). Waiting and running jobs continue."""
    return await _set_mode(api, name, QueueMode.DRAINING)


@router.post("/{name}/resume")
async def resume_queue(name: Queue, api: Api) -> QueueView:
    """Resume a paused or draining queue."""
    view = await _set_mode(api, name, QueueMode.OPEN)
    api.hints.send(name)
    return view


@router.post("/{name}/purge")
async def purge_queue(name: Queue, api: Api, tenant: Tenant) -> PurgeView:
    """Cancel a queue's waiting jobs, at most 500 per call: repeat while `more` is true."""
    canceled = await cancel_waiting(api, name, tenant)
    left = await api.jobs.run(queues.waiting(name, tenant, 1))
    return PurgeView(canceled=canceled, more=len(left) > 0)


@router.get("/{name}/dead-letters", responses=problems(422))
async def list_dead_letters(
    name: Queue, api: Api, tenant: Tenant, limit: Annotated[int, Query(ge=1, le=MAX_JOBS)] = 50
) -> DeadLetterList:
    """List the jobs that failed because their workers died too often, newest first. A retry removes its job."""
    jobs = await api.jobs.run(queues.dead_letters(name, tenant, limit))
    return DeadLetterList(jobs=[api.view(job) for job in jobs])


@router.post("/{name}/dead-letters/requeue", responses=problems(403, 429))
async def requeue_dead_letters(name: Queue, api: Api, tenant: Tenant) -> RequeueView:
    """Retry the dead letters as new jobs, at most 500 per call: repeat while `more` is true."""
    jobs = await api.jobs.run(queues.dead_letters(name, tenant, MAX_JOBS))
    retries = [await api.journal.run(journal.retry(job.key, retry_key(job.key), api.limits)) for job in jobs]
    for done in retries:
        log_submitted(done)
    if retries:
        api.hints.send(name)
    left = await api.jobs.run(queues.dead_letters(name, tenant, 1))
    return RequeueView(jobs=[api.view(done.job) for done in retries], more=len(left) > 0)


async def cancel_waiting(api: Services, queue: str, tenant: str, *, model: str | None = None) -> int:
    """Cancel a tenant's waiting jobs of a queue, or of one model there, `MAX_JOBS` at most; return their number."""
    gate = asyncio.Semaphore(CONCURRENCY)

    async def cancel(key: JobKey) -> bool:
        async with gate:
            try:
                return (await api.journal.run(journal.cancel(key))).status.terminal
            except (UnknownJob, JobGone):
                return False

    keys = await api.jobs.run(queues.waiting(queue, tenant, MAX_JOBS, model=model))
    return sum(await asyncio.gather(*map(cancel, keys)))


async def _set_mode(api: Services, name: str, mode: QueueMode) -> QueueView:
    """Set a queue's mode; `ObjectStoreUnavailable` where it could not be stored."""
    try:
        await api.journal.run(queue_modes.set_mode(name, mode))
    except ObjectStoreUnavailable as error:
        stored = "the mode of the queue is not stored yet, and a loss of Redis would undo the change: repeat it"
        raise ObjectStoreUnavailable(f"{error.detail}; {stored}", retry_after_s=2) from error
    return await _view(api, name)


async def _view(api: Services, name: str) -> QueueView:
    """Return a queue; `UnknownQueue` for one that never had a job or worker, and that no model names."""
    stats = await api.jobs.run(queues.queue_stats(name))
    if not stats.known and name not in await _catalogued(api):
        known = sorted(await api.jobs.run(queues.known_queues()) | await _catalogued(api))
        near = get_close_matches(name, known, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise UnknownQueue(f"there is no queue {name!r}{hint}; queues: {', '.join(known)}")
    return _view_of(api, name, stats)


def _view_of(api: Services, name: str, stats: queues.QueueStats) -> QueueView:
    wanted = stats.wanted_workers(api.settings.scaling, slots=api.settings.slots)
    return QueueView(name=name, wanted_workers=wanted, **asdict(stats))


async def _catalogued(api: Services) -> set[str]:
    """Return the queues of the settings and of the models in the catalogue."""
    entries = await api.models.read()
    return {*api.settings.queues, *(entry.queue for entry in entries.values())}


@workers_router.get("")
async def list_workers(api: Api) -> WorkerList:
    """List the live workers with device, models, batches, and number of running jobs."""
    return WorkerList(workers=await api.jobs.run(workers.living()))


@workers_router.get("/{worker_id}/logs", responses=problems(404))
async def list_worker_lines(worker_id: str, api: Api) -> WorkerLineList:
    """List the latest log lines of a worker, the oldest first: at most 200 and 32 KiB.

    A worker reports its lines with each poll. They are kept for an hour after its end.
    """
    lines = await api.jobs.run(workers.recent_lines(worker_id))
    if lines is None:
        raise UnknownWorker(f"there is no worker {worker_id!r}, and there was none within the last hour")
    return WorkerLineList.model_validate({"lines": lines})
