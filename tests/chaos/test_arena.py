"""The arena waits for every job that was accepted, whoever submitted it."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.chaos.clients import Client, jobs
from tests.chaos.crowd import TICK_S, longest_lag_s
from tests.chaos.run import Run
from tests.chaos.survival import PATIENCE_S, SEED

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.breadth]


def test_a_run_is_not_over_before_the_end_of_a_job_that_a_client_of_its_own_submitted(tmp_path: Path) -> None:
    (wanted,) = jobs(1)
    with Run(tmp_path, SEED, patience_s=PATIENCE_S).arena() as arena:
        for worker in arena.fleet.workers:
            worker.signal(signal.SIGSTOP)
        client = Client(arena.fleet.url, arena.history)
        arena.history.want([wanted])
        assert client.submit(wanted, until=time.monotonic() + PATIENCE_S)
        finishing = threading.Thread(target=arena.finish)
        finishing.start()
        arena.until(lambda: not finishing.is_alive() or any(each.what == "list" for each in arena.history.answers))
        assert arena.history.over == set()
        for worker in arena.fleet.workers:
            worker.signal(signal.SIGCONT)
        finishing.join()
        client.close()
        assert arena.history.over == {wanted.id}


def test_a_crowd_repeats_until_its_jobs_are_accepted_and_notes_every_answer(tmp_path: Path) -> None:
    wanted = jobs(30)
    with Run(tmp_path, SEED, patience_s=PATIENCE_S).arena(proxied=False) as arena:
        arena.valkey.kill()
        arena.submit_from_a_crowd(wanted, clients=10)
        arena.until(lambda: sum(each.status == 503 for each in list(arena.history.answers)) > 20)
        arena.valkey.restart()
        arena.finish()
        arena.verdict()
        submits = [each for each in arena.history.answers if each.what == "submit"]
        assert {each.status for each in submits} == {202, 503}
        assert {each.retry_after is not None for each in submits if each.status == 503} == {True}
        assert arena.history.accepted == arena.history.over == {job.id for job in wanted}
        assert arena.history.client_lag_s > 0


async def test_the_watch_of_a_crowd_sees_its_event_loop_stand_still() -> None:
    watch = asyncio.create_task(longest_lag_s())
    await asyncio.sleep(0)
    threading.Event().wait(20 * TICK_S)  # blocks the loop
    await asyncio.sleep(0)
    watch.cancel()
    assert await watch >= 19 * TICK_S
