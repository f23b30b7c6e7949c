"""A job's events: a live stream (server-sent events) or, asked for as JSON, the list."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated

import structlog
from fastapi import APIRouter, Header, Response
from fastapi.responses import JSONResponse
from sse_starlette import EventSourceResponse, ServerSentEvent

from penstock.api.auth import Admission, Caller, Key
from penstock.api.errors import problems
from penstock.api.schemas import EventList, event_view
from penstock.api.services import Api, Services
from penstock.errors import InvalidRequest, PenstockError
from penstock.jobs import TERMINAL, Job, JobEvent, JobKey
from penstock.storage import journal, records

#: How often the stream looks by itself: a notice that was lost costs this much latency.
LOOK_EVERY_S = 15.0
PAGE = 500
ENDS = frozenset(f"job.{state}" for state in TERMINAL)

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], responses=problems(503))
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
    """Stream what happens to a job, from its beginning or after `Last-Event-ID`, until it ends.

    The first event is always `snapshot`, the job itself; it has no id. Another comes when a waiting job's
    `model_problem` does. Of a long job only about the latest 1,000 events
    are kept: who comes back after more were missed has the snapshot in their place. The stream also ends when the API
    key does. With `Accept: application/json` the answer is the list of what happened so far.
    """
    after = _position(last_event_id)
    job = await api.journal.run(journal.read(key))
    if "application/json" in accept and "text/event-stream" not in accept:
        views = [event_view(event) async for event in _so_far(api, key, after)]
        return JSONResponse(EventList(events=views).model_dump(mode="json"))
    return EventSourceResponse(_stream(api, job, after, caller), ping=LOOK_EVERY_S, sep="\n")


def _position(last_event_id: str | None) -> str:
    if not last_event_id:
        return "0"
    milliseconds, _, number = last_event_id.partition("-")
    if not (milliseconds.isascii() and milliseconds.isdigit() and len(milliseconds) < 16):
        raise InvalidRequest("Last-Event-ID is not an id of this stream")
    if not (number.isascii() and number.isdigit() and len(number) < 16):
        raise InvalidRequest("Last-Event-ID is not an id of this stream")
    return last_event_id


async def _so_far(api: Services, key: JobKey, after: str) -> AsyncIterator[JobEvent]:
    while page := await api.jobs.run(records.events(key, after=after, count=PAGE)):
        for event in page:
            yield event
        after = page[-1].id


async def _stream(api: Services, job: Job, after: str, caller: Admission) -> AsyncIterator[ServerSentEvent]:
    yield _snapshot(api, job)
    problem = job.model_problem
    try:
        async with aclosing(watch(api, job.key, caller, after, model=job.submission.model)) as found:
            async for one in found:
                if isinstance(one, JobEvent):
                    yield ServerSentEvent(event_view(one).model_dump_json(), event=one.type, id=one.id)
                    continue
                # A model's problem is no event of the job, and may come while it waits.
                if one.model_problem not in (None, problem):
                    yield _snapshot(api, one)
                problem = one.model_problem
    except PenstockError as error:  # purged, or no job store: the reader comes back with Last-Event-ID
        log.info("events.broke_off", job=job.key.id, code=error.code)


def _snapshot(api: Services, job: Job) -> ServerSentEvent:
    return ServerSentEvent(api.view(job).model_dump_json(by_alias=True), event="snapshot")


async def follow(api: Services, key: JobKey, caller: Admission) -> AsyncGenerator[JobEvent]:
    """Yield what happens to a job, from its beginning until it ends or the caller's key does."""
    async with aclosing(watch(api, key, caller, "0")) as found:
        async for one in found:
            if isinstance(one, JobEvent):
                yield one


async def watch(
    api: Services, key: JobKey, caller: Admission, after: str, *, model: str | None = None
) -> AsyncGenerator[Job | JobEvent]:
    """Yield a job each time that it is read, and after it what happened since the event `after`; until it ends.

    It is read when it changes, and with `model` when the problem of that model does.
    """
    async with api.jobs.changes(key, model=model) as changes:
        while await caller.lasts(api):
            # The record before its events: when it says that the job ended, the last event is among them.
            yield (job := await api.jobs.run(records.read(key)))
            async for event in _so_far(api, key, after):
                after = event.id
                yield event
                if event.type in ENDS:
                    return
            if job.status.terminal:
                return
            await changes.wait(LOOK_EVERY_S)
