"""The latest log lines of a process, bounded: a worker reports them, so that operators need no access to its host."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from structlog.typing import EventDict, WrappedLogger

from penstock.observation.listening import shortened, text_of

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
