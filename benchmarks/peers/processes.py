"""Processor time and memory of a peer: all processes below its roots."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil

LOOK_EVERY_S = 1.0

Roots = Callable[[], Iterable[int]]


def tree(roots: Iterable[int]) -> list[psutil.Process]:
    """Return the processes with these ids and everything below them."""
    found: dict[int, psutil.Process] = {}
    for pid in roots:
        try:
            root = psutil.Process(pid)
            found |= {process.pid: process for process in (root, *root.children(recursive=True))}
        except psutil.NoSuchProcess:
            continue
    return list(found.values())


def processor_s(roots: Iterable[int]) -> float:
    """Return the processor seconds so far of the processes, and of those that they have waited for."""
    total = 0.0
    for process in tree(roots):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:  # it has just ended, and counts for its parent
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def memory_bytes(roots: Iterable[int]) -> int:
    """Return the memory of the processes; pages that several of them share count once (PSS)."""
    total = 0
    for process in tree(roots):
        try:
            total += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


@dataclass
class Meter:
    """The use of a peer inside `metering`."""

    peak_bytes: int = 0
    processor_s: float = 0.0
    _ended: threading.Event = field(default_factory=threading.Event)


@contextmanager
def metering(roots: Roots) -> Iterator[Meter]:
    """Measure inside the block; the processor time is known after it."""
    meter, before = Meter(), processor_s(roots())

    def look() -> None:
        while True:
            meter.peak_bytes = max(meter.peak_bytes, memory_bytes(roots()))
            if meter._ended.wait(LOOK_EVERY_S):
                return

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield meter
        meter.processor_s = processor_s(roots()) - before
    finally:
        meter._ended.set()
        watcher.join()


def find(roots: Iterable[int], words: str) -> int:
    """Return the id of the process below the roots whose command line or name has the words; raise `LookupError`."""
    for process in tree(roots):
        try:
            if words in " ".join(process.cmdline()) or words in process.name():
                return process.pid
        except psutil.NoSuchProcess:
            continue
    raise LookupError(f"there is no process {words!r}")
