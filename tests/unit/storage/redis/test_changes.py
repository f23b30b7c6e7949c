"""Waiting for a change, and not waiting any more."""

from __future__ import annotations

import asyncio

import pytest

from penstock.storage.redis.changes import Watch, cancel_until_done


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


async def test_a_task_that_loses_a_cancel_ends_all_the_same() -> None:
    lost = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            lost.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)  # it waits
    await asyncio.wait_for(cancel_until_done(task), 10)
    assert lost.is_set()
    assert task.cancelled()
