"""Isolation: work runs in another process, which ends when the work takes too long or nobody waits for it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import psutil
import pytest

from penstock.api.isolation import NICENESS, Isolation
from penstock.errors import InvalidRequest, Issue, PayloadTooLarge
from tests.support.long_work import SlowToRead, process_id, refuse, size_of, write_process_id_and_go_on
from tests.support.polling import wait_for


async def test_work_runs_in_a_process_that_is_used_again_and_comes_after_the_api() -> None:
    isolation = Isolation(1)
    first, second = [await isolation.run("a", 1, process_id) for _ in range(2)]
    assert first == second != os.getpid()
    assert psutil.Process(first).nice() == max(NICENESS, psutil.Process().nice())


async def test_an_error_arrives_with_its_issues() -> None:
    with pytest.raises(InvalidRequest) as refused:
        await Isolation(1).run("a", 1, refuse)
    assert refused.value.errors == (Issue("/a", "is required"),)


async def test_endless_work_is_refused_and_its_process_gone(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    isolation = Isolation(1, cpu_s=0.1, deadline_factor=3000)
    with pytest.raises(PayloadTooLarge, match="send less at a time"):
        await isolation.run("a", 1, write_process_id_and_go_on, str(told))
    assert not psutil.pid_exists(int(told.read_text()))
    assert await Isolation(1).run("a", 1, process_id) != int(told.read_text())


async def test_the_limit_of_one_work_is_not_that_of_the_next() -> None:
    isolation = Isolation(1, cpu_s=0.1, deadline_factor=3000)
    first = await isolation.run("a", 1, process_id)
    assert await isolation.run("a", 1, size_of, SlowToRead()) == 1
    assert await isolation.run("a", 1, process_id) == first


async def test_work_that_nobody_waits_for_is_ended(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    work = asyncio.create_task(Isolation(1).run("a", 1, write_process_id_and_go_on, str(told)))
    await asyncio.to_thread(wait_for, lambda: told.exists() and told.read_text().endswith("\n"), "it did not begin")
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert not psutil.pid_exists(int(told.read_text()))
