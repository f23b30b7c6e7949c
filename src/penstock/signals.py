"""Requests to end a process: SIGTERM, SIGINT and SIGHUP.

A handler runs between any two lines of the main thread, also inside another handler. A handler that takes a lock (an
event's, a logger's) may wait for itself for ever. So these handlers only count, and the process polls.
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

#: Seconds between two polls for a request to end.
POLL_EVERY_S = 0.1


class Signals:
    """Counts the requests to end inside the `with` block; enter it in the main thread."""

    _NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self._count = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Signals:
        """Begin to count."""
        self._before = {number: signal.signal(number, self._note) for number in self._NUMBERS}
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the previous handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def once(self) -> bool:
        """Return True if an end was requested."""
        return self._count > 0

    def twice(self) -> bool:
        """Return True if an end was requested at least twice."""
        return self._count > 1

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._count += 1
