"""A standby hands its process over once, and a worker without one gets a new process."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from penstock.config import Settings
from penstock.errors import ConfigError
from penstock.up.children import RECORD, Child, Ledger
from penstock.up.driver import Standby
from penstock.up.scaling import Range
from penstock.up.supervisor import up
from tests.support.polling import wait_for

#: Writes what it gets on its standard input to its output, and ends.
WAITING = "import sys; print('got', sys.stdin.read(), flush=True)"


class Machine:
    """A standby, and a worker that takes it over."""

    def __init__(self, folder: Path) -> None:
        self.orders = {"worker": "theid", "log": str(folder / "worker.log"), "variables": {}}
        self.ledger, self.record = Ledger(folder / RECORD), folder / RECORD
        self.standby = Standby(
            "standby", [sys.executable, "-c", WAITING], env=os.environ, log=folder / "standby.log", ledger=self.ledger,
            stop_s=5,
        )  # fmt: skip
        self.worker = Child(
            "worker", [sys.executable, "-c", "print('new')"], env=os.environ, log=folder / "worker.log",
            ledger=self.ledger, stop_s=5, warm=partial(self.standby.hand_over, self.orders),
        )  # fmt: skip

    def rows(self) -> dict[str, int]:
        return {name: row["pid"] for name, row in json.loads(self.record.read_text()).items()}

    def end(self) -> None:
        for kept in (self.standby, self.worker):
            kept.kill()


@pytest.mark.parametrize("workers", [None, Range(2, 2)])
def test_a_standby_is_for_workers_that_come_and_go(workers: Range | None, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--workers 0\.\.4"):
        up(Settings(data=tmp_path), lambda _who, _what: None, workers=workers, standby=True)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.end()


def test_a_worker_takes_over_the_process_of_the_standby(machine: Machine) -> None:
    machine.standby.start()
    pid = machine.standby.pid
    assert machine.rows() == {"standby": pid}
    machine.worker.start()
    assert machine.worker.pid == pid
    assert machine.rows() == {"worker": pid}
    assert not machine.standby.alive()
    assert machine.standby.exit_code() is None
    wait_for(lambda: not machine.worker.alive(), "it got no end of its orders")
    assert machine.worker.exit_code() == 0
    assert "theid" in machine.standby.log.read_text()


def test_without_a_standby_a_worker_gets_a_new_process(machine: Machine) -> None:
    machine.worker.start()
    wait_for(lambda: not machine.worker.alive(), "the new process does not end")
    assert machine.worker.log.read_text() == "new\n"


def test_a_standby_that_was_killed_is_not_handed_over(machine: Machine) -> None:
    machine.standby.start()
    killed = machine.standby.pid
    os.kill(killed, signal.SIGKILL)
    machine.worker.start()  # the kernel may not have ended it yet
    wait_for(lambda: not machine.standby.alive() and not machine.worker.alive(), "they do not end")
    if machine.worker.pid != killed:
        assert machine.worker.log.read_text() == "new\n"
    else:
        assert machine.worker.exit_code() == -signal.SIGKILL
