"""A job's events and lines, and the changes of a tenant's jobs: live streams (server-sent events), or JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated

import structlog
from fastapi import APIRouter, Header, Response
from fastapi.responses import JSONResponse
from sse_starlette import EventSourceResponse, ServerSentEvent

from penstock.api.auth import Caller, Key, Principal
from penstock.api.errors import problems
from penstock.api.routes.jobs import MAX_WAIT_S, Wait
from penstock.api.schemas.jobs import ChangeView, EventList, EventView, LineList
from penstock.api.services import Api, Services
from penstock.errors import InvalidRequest, PenstockError
from penstock.jobs import TERMINAL, Job, JobEvent, JobKey
from penstock.storage.journal import journal
from penstock.storage.redis import records
from penstock.storage.redis.changes import of_tenant
from penstock.storage.redis.job_logs import read_lines

#: Seconds between polls of a stream: the latency after a lost notification.
POLL_INTERVAL_S = 15.0
PAGE = 500
ENDS = frozenset(f"job.{state}" for state in TERMINAL)

#: Seconds between two events of the changes of a tenant, at least.
PAUSE_S = 1.0

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], responses=problems(503))
changes_router = APIRouter(prefix="/v1/events", tags=["jobs"], responses=problems(503))
log = structlog.get_logger(__name__)


@router.get(
    "/{job_id}/events",
    response_model=EventList,
    responses=problems(404, 410, 422) | {200: {"content": {"text/event-stream": {}}}},
)
async def job_events(
    key: Key,
    api: Api,
    caller: Caller,
    accept: Annotated[str, Header(include_in_schema=False)] = "*/*",
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Stream a job's events, from the first or after `Last-Event-ID`, until the job ends.

    The first event is always `snapshot`: the job itself, without an id. A further snapshot follows when the
    `model_problem` of a waiting job appears or changes. About the latest 1,000 events of a job are kept; a client that
    missed more has the snapshot instead. The stream also ends when the API key becomes invalid. With
    `Accept: application/json` the response is the list of the events so far.
    """
    after = _position(last_event_id)
    job = await api.journal.run(journal.read(key))
    if "application/json" in accept and "text/event-stream" not in accept:
        found = [event async for event in events_so_far(api, key, after)]
        return JSONResponse(EventList(events=found).model_dump(mode="json"))
    return EventSourceResponse(_stream(api, job, after, caller), ping=POLL_INTERVAL_S, sep="\n")


def _position(last_event_id: str | None) -> str:
    if not last_event_id:
        return "0"
    milliseconds, _, number = last_event_id.partition("-")
    if not (milliseconds.isascii() and milliseconds.isdigit() and len(milliseconds) < 16):
        raise InvalidRequest("Last-Event-ID is not an id of this stream")
    if not (number.isascii() and number.isdigit() and len(number) < 16):
        raise InvalidRequest("Last-Event-ID is not an id of this stream")
    return last_event_id


async def events_so_far(api: Services, key: JobKey, after: str = "0") -> AsyncIterator[JobEvent]:
    """Yield the events of a job that are kept, after the event `after`."""
    while page := await api.jobs.run(records.events(key, after=after, count=PAGE)):
        for event in page:
            yield event
        after = page[-1].id


async def _stream(api: Services, job: Job, after: str, caller: Principal) -> AsyncIterator[ServerSentEvent]:
    yield _snapshot(api, job)
    problem = job.model_problem
    try:
        async with aclosing(watch(api, job.key, caller, after, model=job.submission.model)) as found:
            async for one in found:
                if isinstance(one, JobEvent):
                    yield ServerSentEvent(EventView.model_validate(one).model_dump_json(), event=one.type, id=one.id)
                    continue
                # A model's problem is not an event of the job, and may appear while the job waits.
                if one.model_problem not in (None, problem):
                    yield _snapshot(api, one)
                problem = one.model_problem
    except PenstockError as error:  # purged, or no job store: the client reconnects with Last-Event-ID
        log.info("events.interrupted", job=job.key.id, code=error.code)


def _snapshot(api: Services, job: Job) -> ServerSentEvent:
    return ServerSentEvent(api.view(job).model_dump_json(by_alias=True), event="snapshot")


async def follow(api: Services, key: JobKey, caller: Principal) -> AsyncGenerator[JobEvent]:
    """Yield a job's events from the first, until the job ends or the caller's key becomes invalid."""
    async with aclosing(watch(api, key, caller, "0")) as found:
        async for one in found:
            if isinstance(one, JobEvent):
                yield one


async def watch(
    api: Services, key: JobKey, caller: Principal, after: str, *, model: str | None = None
) -> AsyncGenerator[Job | JobEvent]:
    """Yield the job at each change, followed by its events after the event `after`, until the job ends.

    With `model`, a change of that model's problem also counts.
    """
    async with api.jobs.changes(key, model=model) as changes:
        while await caller.is_valid(api):
            # Read the record before the events: when the record has ended, the last event is among the events.
            yield (job := await api.jobs.run(records.read(key)))
            async for event in events_so_far(api, key, after):
                after = event.id
                yield event
                if event.type in ENDS:
                    return
            if job.status.terminal:
                return
            await changes.wait(POLL_INTERVAL_S)


@router.get("/{job_id}/logs", responses=problems(404, 410))
async def list_lines(key: Key, api: Api) -> LineList:
    """List the lines that the job's processor and runner logged or printed, the oldest first.

    At most 1,000 lines and 64 KiB of a job are kept, as long as the job. Long jobs add their lines while they run, at
    most the first 32 KiB of an attempt; its latest lines follow at its end. A line of the runner is kept where the
    job was alone in its batch.
    """
    await api.journal.run(journal.read(key))  # restores a job that Redis lost
    return LineList.model_validate(await api.jobs.run(read_lines(key)))


@changes_router.get(
    "", response_model=ChangeView, responses=problems(422) | {200: {"content": {"text/event-stream": {}}}}
)
async def job_changes(
    api: Api,
    caller: Caller,
    accept: Annotated[str, Header(include_in_schema=False)] = "*/*",
    wait: Wait = 0,
) -> Response:
    """Stream `jobs.changed` when jobs of the tenant changed, at most once per second: read the list again then.

    The first event comes at once. The stream ends when the API key becomes invalid. With `Accept: application/json`
    the response is one document, after the next change or after `wait` seconds.
    """
    if "application/json" in accept and "text/event-stream" not in accept:
        async with api.jobs.changes(of_tenant(caller.tenant)) as changes:
            changed = await changes.wait(min(wait, MAX_WAIT_S))
        return JSONResponse(ChangeView(changed=changed).model_dump())
    return EventSourceResponse(_changes(api, caller), ping=int(POLL_INTERVAL_S), sep="\n")


async def _changes(api: Services, caller: Principal) -> AsyncIterator[ServerSentEvent]:
    async with api.jobs.changes(of_tenant(caller.tenant)) as changes:
        while await caller.is_valid(api):
            yield ServerSentEvent(ChangeView(changed=True).model_dump_json(), event="jobs.changed")
            await asyncio.sleep(PAUSE_S)
            while not await changes.wait(POLL_INTERVAL_S) and await caller.is_valid(api):
                pass
