"""Listeners: receive the log lines, warnings and prints of one context, such as a job's, while they are written.

Only the context in which `listening` was entered is heard: a thread that was started inside has a context of its own.
`RecentLines` keeps the latest lines of a whole process. Tracebacks become one line.
"""

from __future__ import annotations

import re
import sys
import sysconfig
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from structlog.typing import EventDict, WrappedLogger

#: Receives the level and the text of each line.
Listener: TypeAlias = Callable[[str, str], None]

#: Characters of one line; the rest is left out.
MAX_LINE_CHARS = 2_000
#: Fields of a log line that are no part of its text: the ids of the job, and places in the code.
_LEFT_OUT = frozenset({"event", "level", "at", "job", "trace_id", "logger", "exception", "stack", "traceback", "model"})


class _Ear:
    """A listener, and the begun line of each stream."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._begun: dict[str, str] = {}
        self._lock = threading.Lock()

    def hear(self, level: str, text: str) -> None:
        """Pass a line on; a listener that fails is not worth an error."""
        token = _ear.set(None)  # a listener that logs does not hear itself
        try:
            with suppress(Exception):
                self._listener(level, shortened(text))
        finally:
            _ear.reset(token)

    def print(self, level: str, text: str) -> None:
        """Pass on the lines that end in a printed text, as a terminal shows them: after the last carriage return."""
        with self._lock:
            *lines, begun = (self._begun.pop(level, "") + text).split("\n")
            if begun:
                self._begun[level] = begun[-MAX_LINE_CHARS:]
        self._hear_lines(level, lines)

    def end(self) -> None:
        """Pass on the lines that have no end."""
        for level, begun in self._begun.items():
            self._hear_lines(level, [begun])

    def _hear_lines(self, level: str, lines: Iterable[str]) -> None:
        for line in lines:
            shown = line.rstrip("\r").rpartition("\r")[2]
            if shown.strip():
                self.hear(level, shown)


_ear: ContextVar[_Ear | None] = ContextVar("ear", default=None)


class listening:  # noqa: N801  (used as a function; a generator would cost each job more)
    """A block that passes the lines of this context to a listener; None = nobody listens."""

    __slots__ = ("_ear", "_token")

    def __init__(self, listener: Listener | None) -> None:
        self._ear = None if listener is None else _Ear(listener)

    def __enter__(self) -> None:
        self._token = _ear.set(self._ear)

    def __exit__(self, *_: object) -> None:
        _ear.reset(self._token)
        if self._ear is not None:
            self._ear.end()


def listener() -> Listener | None:
    """Return the listener of this context, for work that another thread does for it."""
    ear = _ear.get()
    return None if ear is None else ear.hear


def pass_on(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Pass a log line to the listener of its context. A processor of structlog, after secrets are removed."""
    ear = _ear.get()
    if ear is not None:
        ear.hear(str(event.get("level", "info")), text_of(event))
    return event


def text_of(event: EventDict) -> str:
    """Return a log line as text: its name, its fields, and its exception with the place in the author's code.

    The rest of a traceback shows the installation, and stays in the service's own log.
    """
    fields = [
        f"{name}={value}"
        for name, value in event.items()
        if value is not None and name not in _LEFT_OUT and not name.startswith("_")
    ]
    text = " ".join([str(event.get("event", "")), *fields])
    traceback = str(event.get("exception") or event.get("traceback") or "")
    if not (error := error_of(traceback)):
        return text
    model = event.get("model")
    where = ", ".join(filter(None, (place_of(traceback), model and f"model {model}")))
    return f"{text}: {error} ({where})" if where else f"{text}: {error}"


def shortened(text: str) -> str:
    """Return a line of at most `MAX_LINE_CHARS` characters."""
    return text if len(text) <= MAX_LINE_CHARS else f"{text[:MAX_LINE_CHARS]}…"


class HeardStream:
    """A stream whose lines also go to the listener of the context that prints them."""

    def __init__(self, stream: TextIO, level: str) -> None:
        self._stream = stream
        self._level = level

    def write(self, text: str) -> int:
        """Write a text."""
        ear = _ear.get()
        if ear is not None:
            ear.print(self._level, text)
        return self._stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write some texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def hear_prints() -> None:
    """Have this process's standard output and error be heard. Only for Penstock's own processes."""
    for name, level in (("stdout", "info"), ("stderr", "warning")):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, HeardStream):
            setattr(sys, name, HeardStream(stream, level))


#: Lines and bytes of text that are kept, the latest.
MAX_LINES, MAX_BYTES = 200, 32 * 1024


@dataclass(frozen=True, slots=True)
class RecentLine:
    """A log line, with its time in seconds since the epoch by the clock of its host."""

    at_s: float
    #: `debug`, `info`, `warning`, `error` or `critical`.
    level: str
    text: str


class RecentLines:
    """The latest log lines of this process. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lines: deque[RecentLine] = deque(maxlen=MAX_LINES)
        self._lock = threading.Lock()
        self._count = 0

    def keep(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        """Keep a log line. A processor of structlog, after secrets are removed."""
        line = RecentLine(time.time(), str(event.get("level", "info")), shortened(_text(event)))
        with self._lock:
            self._lines.append(line)
            self._count += 1
        return event

    def read(self) -> tuple[int, tuple[RecentLine, ...]]:
        """Return the number of lines so far, and the latest, the oldest first."""
        with self._lock:
            count, lines = self._count, list(self._lines)
        kept: list[RecentLine] = []
        left = MAX_BYTES
        for line in reversed(lines):
            left -= len(line.text.encode(errors="replace"))
            if left < 0:
                break
            kept.append(line)
        return count, tuple(reversed(kept))


def _text(event: Mapping[str, Any]) -> str:
    """Return a line with the ids that a job's own lines leave out: here the lines of many jobs stand together."""
    ids = [f"{name}={event[name]}" for name in ("job", "model") if event.get(name) is not None]
    return " ".join([text_of(dict(event)), *ids])


#: A frame of a traceback as Python prints it: file, line and function.
_FRAME = re.compile(r'^\s*File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<name>\S+)', re.M)
#: Folders of code that is not the author's: Penstock, Python's library, installed packages.
_FOREIGN = (f"{Path(__file__).parents[1]}/", f"{sysconfig.get_paths()['stdlib']}/")
_INSTALLED = ("/site-packages/", "/dist-packages/", "<")


def error_of(traceback: str) -> str:
    """Return the last line of a traceback, which names the error; empty without one."""
    lines = [line for line in traceback.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def place_of(traceback: str) -> str | None:
    """Return the place of an error, such as `mine.py:12 in prepare`: the innermost frame of the author's own code.

    Without such a frame, the innermost of all. The folder is left out: it shows the installation.
    """
    frames = list(_FRAME.finditer(traceback))
    own = [frame for frame in frames if _is_own(frame["file"])]
    found = (own or frames)[-1:]
    return next((f"{Path(frame['file']).name}:{frame['line']} in {frame['name']}" for frame in found), None)


def _is_own(file: str) -> bool:
    return not file.startswith((*_FOREIGN, "<")) and not any(part in file for part in _INSTALLED)
