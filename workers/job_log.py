"""The lines of an attempt: what the processor and the runner said of the job, bounded.

The processor's process appends its lines to a file in the attempt's folder, which the worker opened before: so the
lines before a crash are kept, and a process can name no other file. The engine passes on a runner's lines where the job
is alone in the batch.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from penstock.listening import shortened
from penstock.log import redact_text

Source: TypeAlias = Literal["processor", "runner"]

#: Bytes and lines of an attempt that are stored while it runs.
FIRST_BYTES, FIRST_LINES = 32 * 1024, 500
#: Bytes and lines that are stored at the attempt's end, the latest; lines between are left out and counted.
LAST_BYTES, LAST_LINES = 24 * 1024, 450
#: Bytes that a process may write to its file; the worker reads no more.
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
        self._descriptor: int | None = None
        self._read_bytes = 0
        self._begun = b""

    def open_file(self, path: Path) -> Path | None:
        """Make the file to which the processor's process appends its lines, and return its path; None without room."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, flags, 0o600)
        except OSError:  # a job without lines is better than none
            return None
        return path

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def hear_runner(self, level: str, text: str) -> None:
        """Add a line of the runner: a `Listener`."""
        with self._lock:
            self._add(Line(time.time(), "runner", level, text))

    def next_part(self, *, last: bool) -> Part | None:
        """Return the lines to store next, None without any; the `last` part has the latest lines of all."""
        with self._lock:
            for line in self._written():
                self._add(line)
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

    def _written(self) -> Iterator[Line]:
        """Yield the whole lines that the process has written since the last call."""
        while self._descriptor is not None and self._read_bytes < MAX_FILE_BYTES:
            found = os.pread(self._descriptor, 64 * 1024, self._read_bytes)
            if not found:
                return
            self._read_bytes += len(found)
            *lines, self._begun = (self._begun + found).split(b"\n")
            self._begun = self._begun[-MAX_FILE_BYTES:]
            for line in lines:
                if line:
                    yield _line_of(line)


def _line_of(text: bytes) -> Line:
    """Return a line of the file; the file is not trusted."""
    try:
        at, level, said = json.loads(text)
        return Line(_time(at), "processor", level if level in _LEVELS else "info", str(said))
    except (ValueError, TypeError, RecursionError):
        return Line(time.time(), "processor", "info", text.decode("utf-8", "replace"))


def _time(at: Any) -> float:
    """Return a time that a process told, if it is near."""
    now = time.time()
    return float(at) if isinstance(at, int | float) and abs(now - at) < 86_400 else now


class LineFile:
    """The process's side of the file: a `Listener` that appends each line."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._left_bytes = MAX_FILE_BYTES

    def __call__(self, level: str, text: str) -> None:
        """Append a line; nothing once the file is full."""
        row = json.dumps([round(time.time(), 6), level, text]).encode() + b"\n"
        self._left_bytes -= len(row)
        if self._left_bytes >= 0:
            os.write(self._descriptor, row)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
