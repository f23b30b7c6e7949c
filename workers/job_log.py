"""The lines of an attempt: what the processor and the runner said of the job, bounded.

The IO process writes its lines into memory of a fixed size, which the worker made before: so the lines before a crash
are kept, the process can take no more memory by them, and no file is made on a disk. A process keeps this memory for
its next job, which is of the same tenant and model, until one of its jobs has written to it. The engine passes on a
runner's lines if the job is alone in the batch.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from penstock.observation.listening import shortened
from penstock.observation.log import redact_text

Source: TypeAlias = Literal["processor", "runner"]

#: Bytes and lines of an attempt that are stored while it runs.
FIRST_BYTES, FIRST_LINES = 32 * 1024, 500
#: Bytes and lines that are stored at the attempt's end, the latest; lines between are left out and counted.
LAST_BYTES, LAST_LINES = 24 * 1024, 450
#: Bytes of the memory for the lines of a process.
MAX_FILE_BYTES = 4 * 2**20
_LEVELS = frozenset({"debug", "info", "warning", "error", "critical"})
#: Bytes of a line beside its text.
_OVERHEAD_BYTES = 60


@dataclass(frozen=True, slots=True)
class Line:
    """A line, with its time in seconds since the epoch by the worker's clock."""

    at_s: float
    source: Source
    level: str
    text: str

    @property
    def size_bytes(self) -> int:
        """The bytes that count towards the limits."""
        return len(self.text.encode("utf-8", "replace")) + _OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class Part:
    """Lines to store at once. A part is stored once, however often it is sent."""

    number: int
    lines: tuple[Line, ...]
    #: Lines that were left out before these.
    cut: int


class LineMemory:
    """The memory for the lines of an IO process, `MAX_FILE_BYTES` long. Construction raises `OSError` if it fails."""

    def __init__(self) -> None:
        self.descriptor = _fixed_memory(MAX_FILE_BYTES)
        #: True once lines were found in it: no later job may use it.
        self.is_used = False
        self._is_sent = False

    def to_send(self) -> int | None:
        """Return the descriptor to send to the process; None after the first call, when the process has it."""
        sent, self._is_sent = self._is_sent, True
        return None if sent else self.descriptor

    def close(self) -> None:
        """Free the memory in this process."""
        os.close(self.descriptor)


class AttemptLog:
    """The lines of an attempt. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first: list[Line] = []
        self._first_bytes = self._first_lines = 0
        self._last: deque[Line] = deque()
        self._last_bytes = 0
        self._cut = 0
        self._parts = 0
        #: The part that was not stored yet.
        self._pending: Part | None = None
        self._memory: LineMemory | None = None
        self._read_bytes = 0
        self._begun = b""

    @contextmanager
    def reading(self, memory: LineMemory | None) -> Iterator[None]:
        """Read the lines of a process from `memory` while the block runs, and the last ones at its end."""
        with self._lock:
            self._memory = memory
        try:
            yield
        finally:
            with self._lock:
                self._add_written()
                self._memory = None

    def hear_runner(self, level: str, text: str) -> None:
        """Add a line of the runner: a `Listener`."""
        with self._lock:
            self._add(Line(time.time(), "runner", level, text))

    def next_part(self, *, last: bool) -> Part | None:
        """Return the lines to store next, None without any; the `last` part has the latest lines of all."""
        with self._lock:
            self._add_written()
            if self._pending is None and (self._first or (last and self._last)):
                lines, self._first, cut = self._first, [], 0
                if last:
                    lines, cut = [*lines, *self._last], self._cut
                    self._last.clear()
                    self._last_bytes = self._cut = 0
                self._parts += 1
                self._pending = Part(self._parts, tuple(lines), cut)
            return self._pending

    def stored(self) -> None:
        """Note that the latest part was stored, or never will be."""
        with self._lock:
            self._pending = None

    def _add(self, line: Line) -> None:
        line = Line(line.at_s, line.source, line.level, shortened(redact_text(line.text)))
        room = self._first_bytes + line.size_bytes <= FIRST_BYTES and self._first_lines < FIRST_LINES
        if room and not self._last and not self._cut:
            self._first.append(line)
            self._first_bytes += line.size_bytes
            self._first_lines += 1
            return
        self._last.append(line)
        self._last_bytes += line.size_bytes
        while self._last_bytes > LAST_BYTES or len(self._last) > LAST_LINES:
            self._last_bytes -= self._last.popleft().size_bytes
            self._cut += 1

    def _add_written(self) -> None:
        """Add the whole lines that the process has written since the last call. The lock must be held."""
        if self._memory is not None:
            for line in self._written(self._memory):
                self._add(line)

    def _written(self, memory: LineMemory) -> Iterator[Line]:
        while self._read_bytes < MAX_FILE_BYTES:
            size_bytes = 64 * 1024 if self._read_bytes else 4096
            found = os.pread(memory.descriptor, size_bytes, self._read_bytes).partition(b"\0")[0]
            if not found:
                return
            memory.is_used = True
            self._read_bytes += len(found)
            *lines, self._begun = (self._begun + found).split(b"\n")
            self._begun = self._begun[-MAX_FILE_BYTES:]
            for line in lines:
                if line:
                    yield _line_of(line)


def _line_of(text: bytes) -> Line:
    """Return a line of the memory, which is not trusted."""
    try:
        at, level, said = json.loads(text)
        return Line(_time(at), "processor", level if level in _LEVELS else "info", str(said))
    except (ValueError, TypeError, RecursionError):
        return Line(time.time(), "processor", "info", text.decode("utf-8", "replace"))


def _time(at: Any) -> float:
    """Return a time that a process told, if it is near."""
    now = time.time()
    return float(at) if isinstance(at, int | float) and abs(now - at) < 86_400 else now


def _fixed_memory(size_bytes: int) -> int:
    """Return the descriptor of memory full of zeros that nobody can make larger or smaller."""
    if not hasattr(os, "memfd_create"):  # not on Linux
        with tempfile.TemporaryFile() as file:
            file.truncate(size_bytes)
            return os.dup(file.fileno())
    descriptor = os.memfd_create("lines", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class LineFile:
    """The IO process's side of the memory for lines: a `Listener` that writes a job's lines one behind the other."""

    def __init__(self, descriptor: int) -> None:
        """Write to the empty memory of this descriptor, which remains the caller's to close."""
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._written_bytes = 0
        self._closed = False

    def __call__(self, level: str, text: str) -> None:
        """Write a line; nothing once the memory is full, or after `close`."""
        row = json.dumps([round(time.time(), 6), level, text]).encode() + b"\n"
        with self._lock:
            at, self._written_bytes = self._written_bytes, self._written_bytes + len(row)
            if at + len(row) <= MAX_FILE_BYTES and not self._closed:
                os.pwrite(self._descriptor, row, at)

    def close(self) -> None:
        """Drop all further lines: a thread that outlives its job would write them to the next job."""
        with self._lock:
            self._closed = True
