"""Load: a fixed number of jobs with some in flight, without faults or with one kill in the middle."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.measuring import Lost, metering, tree
from benchmarks.peers.figures import Killed, Measured
from benchmarks.peers.works import Work

Submit = Callable[[dict[str, Any]], None]


class Service(Protocol):
    """A running peer."""

    def caller(self) -> Submit:
        """Return a function for one thread that submits a job and returns at its end; raises `Lost`.

        It waits for a server that does not accept connections: such a job was not sent.
        """

    def roots(self) -> list[int]:
        """Return the ids of the processes that this peer is made of; their children count, too."""

    def worker(self) -> int:
        """Return the id of the process that runs the model."""


def measure(service: Service, work: Work) -> Measured:
    """Run the jobs of a work; raise `Lost` if one has no answer."""
    _press(service, work, max(1, min(work.jobs // 10, 20)))
    with metering(lambda: tree(service.roots())) as meter:
        run = _press(service, work, work.jobs)
    if run.lost:
        raise Lost(f"{run.lost} of {work.jobs} jobs failed without a fault: {run.reason}")
    return Measured(tuple(run.latencies_s), meter.took_s, meter.processor_s, meter.peak_bytes)


def kill(service: Service, work: Work) -> Killed:
    """Run the jobs of a work; when half of them have ended, SIGKILL the worker."""
    killed_at: list[float] = []

    def strike() -> None:
        os.kill(service.worker(), signal.SIGKILL)
        killed_at.append(time.perf_counter())

    run = _press(service, work, work.kill_jobs, at_half=strike)
    after = [end for begun, end in run.spans if killed_at and begun > killed_at[0]]
    back_s = min(after) - killed_at[0] if after else None
    return Killed(work.kill_jobs, run.lost, back_s)


@dataclass
class _Run:
    latencies_s: list[float] = field(default_factory=list)
    #: Begin and end of each job that was answered.
    spans: list[tuple[float, float]] = field(default_factory=list)
    lost: int = 0
    reason: str = ""


def _press(service: Service, work: Work, jobs: int, at_half: Callable[[], None] | None = None) -> _Run:
    run, numbers, lock = _Run(), iter(range(jobs)), threading.Lock()

    def take() -> bool:
        with lock:
            return next(numbers, None) is not None

    def note(begun: float, error: Lost | None) -> bool:
        end = time.perf_counter()
        with lock:
            if error is None:
                run.latencies_s.append(end - begun)
                run.spans.append((begun, end))
            else:
                run.lost, run.reason = run.lost + 1, str(error)
            return len(run.latencies_s) + run.lost == max(1, jobs // 2)

    def one_after_the_other() -> None:
        submit = service.caller()
        while take():
            begun, error = time.perf_counter(), None
            try:
                submit(work.job())
            except Lost as lost:
                error = lost
            if note(begun, error) and at_half is not None:
                at_half()

    with ThreadPoolExecutor(work.in_flight) as pool:
        for future in [pool.submit(one_after_the_other) for _ in range(min(work.in_flight, jobs))]:
            future.result()
    return run
