"""Processor time, memory and calls of services, and figures that are measured in turns."""

from __future__ import annotations

import http.client
import json
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import psutil

SAMPLE_EVERY_S = 1.0
#: Seconds to wait for a server that refuses connections.
START_S = 300

T = TypeVar("T")


class Lost(Exception):
    """A job was accepted, or sent, and has no answer."""


def tree(roots: Iterable[int]) -> list[psutil.Process]:
    """Return the processes with these ids and all their descendants."""
    found: dict[int, psutil.Process] = {}
    for pid in roots:
        try:
            root = psutil.Process(pid)
            found |= {process.pid: process for process in (root, *root.children(recursive=True))}
        except psutil.NoSuchProcess:
            continue
    return list(found.values())


def processor_s(processes: Iterable[psutil.Process]) -> float:
    """Return the processor seconds so far of the processes, and of ended children that they have waited for."""
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:  # it has just ended, and counts for its parent
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def memory_bytes(processes: Iterable[psutil.Process]) -> int:
    """Return the memory of the processes; pages that several of them share count once (PSS)."""
    total = 0
    for process in processes:
        try:
            total += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


def peak_mb() -> float:
    """Return the peak resident memory of this process, in MB."""
    # Not `ru_maxrss`: that begins with the memory of the process that started this one.
    words = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()
    return int(words[0]) * 1024 / 1e6


@dataclass
class Meter:
    """The use of a service inside `metering`."""

    peak_bytes: int = 0
    processor_s: float = 0.0
    took_s: float = 0.0
    _ended: threading.Event = field(default_factory=threading.Event)


@contextmanager
def metering(processes: Callable[[], Iterable[psutil.Process]]) -> Iterator[Meter]:
    """Measure the processes inside the block; processor and wall time are known after the block."""
    meter, before, begun = Meter(), processor_s(processes()), time.perf_counter()

    def sample() -> None:
        while True:
            meter.peak_bytes = max(meter.peak_bytes, memory_bytes(processes()))
            if meter._ended.wait(SAMPLE_EVERY_S):
                return

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield meter
        meter.took_s = time.perf_counter() - begun
        meter.processor_s = processor_s(processes()) - before
    finally:
        meter._ended.set()
        sampler.join()


def find(roots: Iterable[int], words: str) -> int:
    """Return the id of the process below the roots whose command line or name has the words; raise `LookupError`."""
    for process in tree(roots):
        try:
            if words in " ".join(process.cmdline()) or words in process.name():
                return process.pid
        except psutil.NoSuchProcess:
            continue
    raise LookupError(f"there is no process {words!r}")


def in_turns(measures: Mapping[str, Callable[[], T]], turns: int) -> dict[str, list[T]]:
    """Run all measures one after the other in each turn, so that other load affects all of them; return the results."""
    results: dict[str, list[T]] = {name: [] for name in measures}
    for _ in range(turns):
        for name, measure in measures.items():
            results[name].append(measure())
    return results


def median_ratio(numerators: Iterable[float], denominators: Iterable[float]) -> float:
    """Return the median of the ratios of each turn."""
    return median(above / below for above, below in zip(numerators, denominators, strict=True))


class Http:
    """A connection for one thread."""

    def __init__(self, port: int, timeout_s: float) -> None:
        self._port, self._timeout_s = port, timeout_s
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Return the status and the JSON of the answer; wait for a server that refuses connections; raise `Lost`."""
        connection = self._connection or self._connect()
        data = None if body is None else json.dumps(body)
        try:
            connection.request(method, path, data, {"Content-Type": "application/json", **headers})
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            self._connection = None
            raise Lost(f"{type(error).__name__}: {error}") from error
        self._connection = connection
        if answer.will_close:
            connection.close()
            self._connection = None
        try:
            return answer.status, json.loads(text) if text else None
        except ValueError:
            return answer.status, text.decode(errors="replace")[:200]

    def _connect(self) -> http.client.HTTPConnection:
        ends = time.monotonic() + START_S
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=self._timeout_s)
            try:
                connection.connect()
            except OSError as error:
                if time.monotonic() > ends:
                    raise Lost(f"the server no longer accepts connections: {error}") from error
                time.sleep(0.1)
            else:
                return connection


def all_at_once(work: Callable[[int], Any], count: int) -> float:
    """Return the seconds of a task in a number of concurrent threads."""
    with ThreadPoolExecutor(count) as pool:
        begun = time.perf_counter()
        for done in [pool.submit(work, number) for number in range(count)]:
            done.result()
        return time.perf_counter() - begun


def never() -> None:
    """Check for cancellation that never cancels."""


def machine() -> str:
    """Return the day, the processor, the number of cores and the load."""
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, load {os.getloadavg()[0]:.1f}"
    )


def say(line: str) -> None:
    """Print a line immediately, because benchmarks take minutes."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
