"""Changes of a tenant's jobs: a live stream for lists of jobs, or one JSON answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Response
from fastapi.responses import JSONResponse
from sse_starlette import EventSourceResponse, ServerSentEvent

from penstock.api.auth import Caller, Principal
from penstock.api.errors import problems
from penstock.api.routes.events import POLL_INTERVAL_S
from penstock.api.routes.jobs import MAX_WAIT_S, Wait
from penstock.api.schemas.jobs import ChangeView
from penstock.api.services import Api, Services
from penstock.storage.redis.changes import of_tenant

#: Seconds between two events of a stream, at least.
PAUSE_S = 1.0

router = APIRouter(prefix="/v1/events", tags=["jobs"], responses=problems(503))


@router.get("", response_model=ChangeView, responses=problems(422) | {200: {"content": {"text/event-stream": {}}}})
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
    return EventSourceResponse(_stream(api, caller), ping=int(POLL_INTERVAL_S), sep="\n")


async def _stream(api: Services, caller: Principal) -> AsyncIterator[ServerSentEvent]:
    async with api.jobs.changes(of_tenant(caller.tenant)) as changes:
        while await caller.is_valid(api):
            yield ServerSentEvent(ChangeView(changed=True).model_dump_json(), event="jobs.changed")
            await asyncio.sleep(PAUSE_S)
            while not await changes.wait(POLL_INTERVAL_S) and await caller.is_valid(api):
                pass
