"""Calls in tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from functools import partial

import pytest

from penstock.client.answers import Event
from penstock.client.tasks import follow, together


async def test_results_keep_their_order_and_so_many_calls_run_at_once() -> None:
    running, most = 0, 0

    async def call(number: int) -> int:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        await asyncio.sleep(0)
        running -= 1
        return number

    assert await together([partial(call, n) for n in range(7)], 3, threading.Event()) == list(range(7))
    assert most == 3


async def test_a_call_that_fails_cancels_the_others() -> None:
    stop, begun, canceled = threading.Event(), asyncio.Event(), asyncio.Event()

    async def fail() -> None:
        await begun.wait()
        raise ValueError("mine")

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            canceled.set()

    with pytest.raises(ValueError, match="mine"):
        await together([fail, wait], 2, stop)
    assert canceled.is_set()
    assert stop.is_set()


async def test_events_end_with_a_callers_own_error() -> None:
    ended = asyncio.Event()

    async def events() -> AsyncGenerator[Event, None]:
        try:
            while True:
                yield Event(type="job.progress")
        finally:
            ended.set()

    def fail(_event: Event) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await follow(events(), fail, None)
    assert ended.is_set()
