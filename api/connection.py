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
from penstock.patience import one_patience, waited_before_s
from penstock.storage.redis.changes import cancel_until_done

T = TypeVar("T")
#: Most seconds at the door and in the line of submissions together. Longer than the time limit of one call to Redis:
#: those behind a Redis that hangs are refused for that reason, by the time-out of those in front of them.
LONGEST_WAIT_S = 3.5


@asynccontextmanager
async def turn(request: Request, limit: ConcurrencyLimit, tenant: str) -> AsyncIterator[None]:
    """Occupy one place of the limit inside the block.

    A client that disconnects while it waits loses its turn: raises `ClientLeft`. Raises `Overloaded` as the limit does,
    and after `LONGEST_WAIT_S`. All calls to Redis inside the block share one time limit; the time in line counts, and
    so does the time at the door.
    """
    if limit.has_room:
        await limit.enter(tenant)
        waited_s = 0.0
    else:
        waited_s = await _wait_in_line(request, limit, tenant)
    try:
        with one_patience(waited_s + waited_before_s()):
            yield
    finally:
        limit.leave()


def no_turn() -> Overloaded:
    """Return the error for a request that has waited for `LONGEST_WAIT_S`."""
    return Overloaded(f"no turn came within {LONGEST_WAIT_S:g} s; try again", retry_after_s=1)


async def _wait_in_line(request: Request, limit: ConcurrencyLimit, tenant: str) -> float:
    """Occupy one place of the limit and return the seconds that it took."""
    begun_s = time.monotonic()
    await while_connected(request, _enter(limit, tenant))
    return time.monotonic() - begun_s


async def _enter(limit: ConcurrencyLimit, tenant: str) -> None:
    try:
        async with asyncio.timeout(LONGEST_WAIT_S - waited_before_s()):
            await limit.enter(tenant)
    except TimeoutError as error:
        raise no_turn() from error


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
