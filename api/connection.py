"""A request's connection: work that ends when its client leaves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TypeVar

from fastapi import Request

from penstock.api.admission.concurrency import ConcurrencyLimit
from penstock.errors import ClientLeft, Overloaded
from penstock.storage.deadline import request_deadline
from penstock.storage.redis.changes import cancel_until_done

T = TypeVar("T")
#: Most seconds that a submission waits for admission. Longer than the time limit of one call to Redis: where Redis
#: hangs, the calls in progress time out first, and the waiting submissions are rejected for the same reason.
LONGEST_WAIT_S = 3.5


@asynccontextmanager
async def turn(request: Request, limit: ConcurrencyLimit, tenant: str) -> AsyncIterator[None]:
    """Occupy one place of the limit inside the block.

    A client that disconnects while it waits loses its turn: raises `ClientLeft`. Raises `Overloaded` as the limit does,
    and after `LONGEST_WAIT_S`. All calls to Redis inside the block share one time limit, in which the time in line
    counts.
    """
    begun_s = time.monotonic()
    if limit.has_room:
        await limit.enter(tenant)
    else:
        await while_connected(request, _wait_in_line(limit, tenant))
    try:
        with request_deadline(time.monotonic() - begun_s):
            yield
    finally:
        limit.leave()


async def _wait_in_line(limit: ConcurrencyLimit, tenant: str) -> None:
    try:
        async with asyncio.timeout(LONGEST_WAIT_S):
            await limit.enter(tenant)
    except TimeoutError as error:
        raise Overloaded(f"no admission within {LONGEST_WAIT_S:g} s; try again", retry_after_s=1) from error


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """Return the result of `work`; when the client disconnects first, cancel the work and raise `ClientLeft`.

    Call it after the body has been read, because it reads from the connection.
    """
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
    finally:
        await cancel_until_done(working, leaving)
    raise ClientLeft


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
