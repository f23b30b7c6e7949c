"""Waiting for a change, and not waiting any more."""

from __future__ import annotations

import asyncio

import pytest

from penstock.storage.changes import Watch


@pytest.mark.parametrize("steps", range(3))
async def test_a_waiter_that_is_canceled_as_the_change_comes_is_canceled(steps: int) -> None:
    watch = Watch()
    waiter = asyncio.create_task(watch.wait(60))
    await asyncio.sleep(0)  # it waits
    watch.notify()
    for _ in range(steps):
        await asyncio.sleep(0)
    if waiter.cancel():  # else it was over by then
        with pytest.raises(asyncio.CancelledError):
            await waiter


async def test_a_change_before_the_wait_is_seen_once() -> None:
    watch = Watch()
    watch.notify()
    await watch.wait(60)
    await watch.wait(0)  # ends by its time: there was no second change
