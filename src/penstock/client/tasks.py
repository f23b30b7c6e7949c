"""The part of the client that asyncio does in its own way. `threads` has the same names for the sync client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from typing import TypeAlias, TypeVar

import httpx2

from penstock.client.answers import Event

T = TypeVar("T")
in_thread = asyncio.to_thread
#: A call without arguments.
Call: TypeAlias = Callable[[], Awaitable[T]]
#: Waits for seconds, or until the event is set.
Pause: TypeAlias = Callable[[float, threading.Event | None], Awaitable[None]]


async def pause(seconds: float, _stop: threading.Event | None) -> None:
    """Wait; `together` cancels the wait of a call that should end."""
    await asyncio.sleep(seconds)


async def together(calls: Sequence[Call[T]], at_a_time: int, stop: threading.Event) -> list[T]:
    """Return the results of calls in tasks, at most `at_a_time` at once; a failure cancels the others."""
    gate = asyncio.Semaphore(at_a_time)

    async def gated(call: Call[T]) -> T:
        async with gate:
            return await call()

    tasks = [asyncio.create_task(gated(call)) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        stop.set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def follow(
    events: AsyncGenerator[Event, None], on_event: Callable[[Event], None], timeout_s: float | None
) -> None:
    """Call `on_event` with each event until the events or the time end; then end their connection."""
    try:
        async with asyncio.timeout(timeout_s) as following, aclosing(events):
            async for event in events:
                on_event(event)
    except TimeoutError:
        if not following.expired():
            raise


def cut_off(_response: httpx2.Response, _after_s: float) -> AbstractAsyncContextManager[None]:
    """Do nothing: `follow` cancels a read that takes too long."""
    return nullcontext()
