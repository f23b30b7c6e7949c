"""The asyncio half of the async client. `sync_runtime` has the same names for threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, TypeAlias

import httpx2

from penstock.client import downloads
from penstock.client.answers import Event
from penstock.client.protocol import Flow, Together, Upload

sleep, blocking = asyncio.sleep, asyncio.to_thread
Sleep: TypeAlias = Callable[[float], Awaitable[object]]
#: Runs a flow: a client's method.
Run: TypeAlias = Callable[[Flow[Any]], Awaitable[Any]]


async def together(run: Run, step: Together) -> list[Any]:
    """Run flows in tasks, at most `at_a_time` at once; a failure cancels the others."""
    gate = asyncio.Semaphore(step.at_a_time)

    async def gated(flow: Flow[Any]) -> Any:
        async with gate:
            return await run(flow)

    tasks = [asyncio.create_task(gated(flow)) for flow in step.flows]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        step.stop.set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def follow(events: AsyncIterator[Event], on_event: Callable[[Event], None], timeout_s: float | None) -> None:
    """Call `on_event` with each event until the events or the time end."""
    try:
        async with asyncio.timeout(timeout_s) as following:
            async for event in events:
                on_event(event)
    except TimeoutError:
        if not following.expired():
            raise


def cut_off(_response: httpx2.Response, _after_s: float) -> AbstractAsyncContextManager[None]:
    """Do nothing: `follow` cancels a read that takes too long."""
    return nullcontext()


async def chunks(upload: Upload) -> AsyncIterator[bytes]:
    """Yield the bytes of a file or of a part, read in a thread."""
    source = downloads.chunks(upload)
    while (chunk := await blocking(next, source, None)) is not None:
        yield chunk
