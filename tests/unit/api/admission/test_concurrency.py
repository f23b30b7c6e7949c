"""The concurrency limit shares its places fairly: a flood of one tenant delays only that tenant."""

from __future__ import annotations

import asyncio

import pytest

from penstock.api.admission.concurrency import LOOK_UP_INTERVAL_S, REMEMBERED_S, ConcurrencyLimit, RecentRefusals
from penstock.errors import Overloaded, TooManyJobs


class Line:
    """Requests that occupy a place until the test ends them."""

    def __init__(self, limit: ConcurrencyLimit) -> None:
        self.limit = limit
        self.begun: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    async def come(self, *names: str) -> None:
        """Let requests come; the first letter is the tenant."""
        for name in names:
            self._ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._hold(name))
        await settle()

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await settle()

    async def _hold(self, name: str) -> None:
        async with self.limit.acquire(name[0]):
            self.begun.append(name)
            await self._ends[name].wait()


async def settle() -> None:
    """Let everything that can go on do so."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_those_who_wait_take_turns_by_tenant() -> None:
    line = Line(ConcurrencyLimit(limit=1))
    await line.come("a1", "a2", "a3", "a4", "b1", "c1", "b2")
    for name in ("a1", "a2", "b1", "c1", "a3", "b2", "a4"):
        assert line.begun[-1] == name
        await line.end(name)
    assert len(line.begun) == 7


async def test_so_many_go_at_once_and_all_turns_come_back() -> None:
    line = Line(ConcurrencyLimit(limit=2))
    for _ in range(2):
        line.begun.clear()
        await line.come("a1", "a2", "a3")
        assert line.begun == ["a1", "a2"]
        for name in ("a2", "a1", "a3"):
            await line.end(name)
        assert line.begun == ["a1", "a2", "a3"]


async def test_more_than_may_wait_are_told_to_come_back_and_others_are_not() -> None:
    line = Line(ConcurrencyLimit(limit=1, max_waiting=2))
    await line.come("a1", "a2", "a3", "a4", "b1")
    with pytest.raises(Overloaded) as refused:
        await line.tasks["a4"]
    assert refused.value.retry_after_s == 1
    for name in ("a1", "a2", "b1", "a3"):
        await line.end(name)
    assert line.begun == ["a1", "a2", "b1", "a3"]


async def test_nobody_joins_a_line_whose_first_waits_too_long() -> None:
    now_s = 100.0
    line = Line(ConcurrencyLimit(limit=1, late_s=1, clock=lambda: now_s))
    await line.come("a1", "a2", "a3")
    now_s += 1.5
    await line.come("a4", "b1")
    with pytest.raises(Overloaded):
        await line.tasks["a4"]
    await line.end("a1")
    await line.come("b2")  # b's first has not waited long
    for name in ("a2", "b1", "a3"):
        await line.end(name)
    assert line.begun == ["a1", "a2", "b1", "a3", "b2"]
    await line.come("a5")  # nobody of a waits
    await line.end("b2")
    assert line.begun[-1] == "a5"


async def test_those_who_left_do_not_count_as_waiting() -> None:
    line = Line(ConcurrencyLimit(limit=1, max_waiting=1))
    await line.come("a1", "a2")
    line.tasks["a2"].cancel()
    await settle()
    assert line.limit.waiting("a") == 0
    assert not line.limit.any_waiting
    await line.come("a3")
    await line.end("a1")
    assert line.begun == ["a1", "a3"]


@pytest.mark.parametrize("when", ["waiting", "as its turn comes"])
async def test_a_request_that_goes_away_loses_no_turn(when: str) -> None:
    line = Line(ConcurrencyLimit(limit=1))
    await line.come("a1", "a2", "a3")
    if when == "waiting":
        line.tasks["a2"].cancel()
        await line.end("a1")
    else:
        line._ends["a1"].set()
        await asyncio.sleep(0)  # a1 wakes
        line.tasks["a2"].cancel()
        await settle()
    assert line.begun == ["a1", "a3"]
    await line.end("a3")
    await line.come("b1")
    assert line.begun[-1] == "b1"


def test_what_a_tenant_was_told_counts_for_a_moment_and_for_it_alone() -> None:
    now_s = [100.0]
    refusals = RecentRefusals(clock=lambda: now_s[0])
    assert not refusals.any_recent

    refusals.record("flood", TooManyJobs("20 jobs are waiting or running", retry_after_s=7))
    now_s[0] += REMEMBERED_S * 0.9
    told = refusals.recent("flood")
    assert told is not None
    assert (told.detail, told.retry_after_s) == ("20 jobs are waiting or running", 7)
    assert refusals.recent("small") is None

    now_s[0] += REMEMBERED_S * 0.2
    assert refusals.any_recent
    assert refusals.recent("flood") is None
    assert not refusals.any_recent


def test_of_a_full_tenant_one_request_at_a_time_may_look_for_its_job() -> None:
    now_s = [100.0]
    refusals = RecentRefusals(clock=lambda: now_s[0])
    assert [refusals.may_look_up("flood"), refusals.may_look_up("flood"), refusals.may_look_up("small")] == [
        True,
        False,
        True,
    ]
    now_s[0] += LOOK_UP_INTERVAL_S
    assert [refusals.may_look_up("flood"), refusals.may_look_up("flood")] == [True, False]
