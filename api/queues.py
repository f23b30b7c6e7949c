"""Queues: depth and speed, and what operators do to them."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from penstock.api.auth import Tenant
from penstock.api.errors import problems
from penstock.api.jobs import log_made, retried_key
from penstock.api.queue_schemas import DeadLetters, Purged, QueueList, QueueView, Requeued, queue_view
from penstock.api.services import Api, Services
from penstock.errors import JobGone, UnknownJob, UnknownQueue
from penstock.jobs import JobKey, QueueMode
from penstock.storage import journal, queues

#: Jobs that one purge or requeue takes; what is left is told.
MAX_JOBS = 500
#: How many of them are on the way to the object store at a time.
CONCURRENCY = 16

router = APIRouter(prefix="/v1/queues", tags=["queues"], responses=problems(404, 503))


async def _known(name: str, api: Api) -> str:
    await _stats(api, name)
    return name


Queue = Annotated[str, Depends(_known)]


@router.get("")
async def list_queues(api: Api) -> QueueList:
    """List the queues that there are, by name, each with its depth and speed."""
    names = sorted({*await api.jobs.run(queues.known_queues()), *api.settings.queues})
    found = await asyncio.gather(*(_stats(api, name) for name in names))
    return QueueList(queues=[queue_view(name, stats) for name, stats in zip(names, found, strict=True)])


@router.get("/{name}")
async def read_queue(name: str, api: Api) -> QueueView:
    """Return a queue's depth and speed: the one signal that autoscaling needs."""
    return queue_view(name, await _stats(api, name))


@router.post("/{name}/pause")
async def pause_queue(name: Queue, api: Api) -> QueueView:
    """Give no more jobs to workers; jobs are still accepted, and what runs, runs on."""
    return await _set_mode(api, name, QueueMode.PAUSED)


@router.post("/{name}/drain")
async def drain_queue(name: Queue, api: Api) -> QueueView:
    """Accept no more jobs (503); what waits is worked off."""
    return await _set_mode(api, name, QueueMode.DRAINING)


@router.post("/{name}/resume")
async def resume_queue(name: Queue, api: Api) -> QueueView:
    """End a pause or a drain."""
    view = await _set_mode(api, name, QueueMode.OPEN)
    api.hints.send(name)
    return view


@router.post("/{name}/purge")
async def purge_queue(name: Queue, api: Api, tenant: Tenant) -> Purged:
    """Cancel the jobs that wait, at most 500 a call: repeat while `more` is true."""
    keys = await api.jobs.run(queues.waiting(name, tenant, MAX_JOBS))
    gate = asyncio.Semaphore(CONCURRENCY)

    async def cancel(key: JobKey) -> bool:
        async with gate:
            try:
                return (await api.journal.run(journal.cancel(key))).status.terminal
            except (UnknownJob, JobGone):
                return False

    canceled = sum(await asyncio.gather(*map(cancel, keys)))
    left = await api.jobs.run(queues.waiting(name, tenant, 1))
    return Purged(canceled=canceled, more=len(left) > 0)


@router.get("/{name}/dead-letters", responses=problems(422))
async def list_dead_letters(
    name: Queue, api: Api, tenant: Tenant, limit: Annotated[int, Query(ge=1, le=MAX_JOBS)] = 50
) -> DeadLetters:
    """List the jobs whose workers died too often, newest first; a retry takes a job off the list."""
    jobs = await api.jobs.run(queues.dead_letters(name, tenant, limit))
    return DeadLetters(jobs=[api.view(job) for job in jobs])


@router.post("/{name}/dead-letters/requeue", responses=problems(429))
async def requeue_dead_letters(name: Queue, api: Api, tenant: Tenant) -> Requeued:
    """Retry the dead letters as new jobs, at most 500 a call: repeat while `more` is true."""
    jobs = await api.jobs.run(queues.dead_letters(name, tenant, MAX_JOBS))
    made = [await api.journal.run(journal.retry(job.key, retried_key(job.key), api.limits)) for job in jobs]
    for done in made:
        log_made(done)
    if made:
        api.hints.send(name)
    left = await api.jobs.run(queues.dead_letters(name, tenant, 1))
    return Requeued(jobs=[api.view(done.job) for done in made], more=len(left) > 0)


async def _set_mode(api: Services, name: str, mode: QueueMode) -> QueueView:
    await api.jobs.run(queues.set_mode(name, mode))
    return queue_view(name, await _stats(api, name))


async def _stats(api: Services, name: str) -> queues.QueueStats:
    stats = await api.jobs.run(queues.queue_stats(name))
    if not stats.known and name not in api.settings.queues:
        raise UnknownQueue
    return stats
