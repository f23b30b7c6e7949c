"""The arena waits for every job that was accepted, whoever submitted it."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest

from tests.chaos.clients import Client, jobs
from tests.chaos.run import Run
from tests.chaos.survival import PATIENCE_S, SEED

pytestmark = [pytest.mark.slow, pytest.mark.alone]


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
