"""Times in which a process did not run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.workers.app import ProcessPauses


def ticked(*times: float) -> ProcessPauses:
    pauses = ProcessPauses(1.0)
    for at in times:
        pauses.tick(at)
    return pauses


def test_without_pauses_all_time_counts() -> None:
    assert ticked().ran_s(60, at=100) == 60
    assert ticked(*range(101)).ran_s(60, at=100) == 60


def test_a_stopped_process_ran_only_until_its_last_tick() -> None:
    pauses = ticked(*range(31), 95)
    assert pauses.ran_s(95, at=95) == 31
    assert pauses.ran_s(40, at=95) == 0
    assert pauses.ran_s(5, at=100) == 5


def test_a_machine_that_is_slow_all_the_time_counts_by_ticks() -> None:
    pauses = ticked(*range(0, 101, 4))
    assert pauses.ran_s(100, at=100) == pytest.approx(25)


@given(st.lists(st.floats(0, 30), max_size=50), st.floats(0, 2000))
def test_the_time_that_a_process_ran_lies_between_nothing_and_all(gaps: list[float], seconds: float) -> None:
    at, pauses = 0.0, ProcessPauses(1.0)
    for gap in gaps:
        at += gap
        pauses.tick(at)
    assert -1e-6 <= pauses.ran_s(seconds, at=at) <= seconds


_TICKING = """
import sys, time
from penstock.workers.app import ProcessPauses
begun, pauses = time.monotonic(), ProcessPauses(0.05)
pauses.tick(begun)
print("ticking", flush=True)
while time.monotonic() < begun + 2.5:
    time.sleep(0.02)
    pauses.tick(time.monotonic())
now = time.monotonic()
print(pauses.ran_s(now - begun, at=now), now - begun)
"""


def test_a_real_process_that_was_stopped_knows_it() -> None:
    process = subprocess.Popen([sys.executable, "-c", _TICKING], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ticking\n"
    os.kill(process.pid, signal.SIGSTOP)
    stopped_at = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)
    stopped_s = time.monotonic() - stopped_at
    os.kill(process.pid, signal.SIGCONT)
    ran_s, all_s = map(float, process.communicate(timeout=30)[0].split())
    assert ran_s <= all_s - stopped_s + 0.1
