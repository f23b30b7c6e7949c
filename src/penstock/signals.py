"""Requests to end a process: SIGTERM, SIGINT and SIGHUP.

A handler runs between any two lines of the main thread, also inside another handler. One that takes a lock (an event's,
a logger's) may wait for itself for ever, so these only count, and the process looks.
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

#: How often a process looks whether its end was asked for.
LOOK_EVERY_S = 0.1


class Signals:
    """Counts the requests to end inside the `with` block, which is entered in the main thread."""

    _NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self._count = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Signals:
        """Begin to count."""
        self._before = {number: signal.signal(number, self._note) for number in self._NUMBERS}
        return self

    def __exit__(self, *_: object) -> None:
        """Do with signals what was done before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def once(self) -> bool:
        """Whether an end was asked for."""
        return self._count > 0

    def twice(self) -> bool:
        """Whether it was asked for again."""
        return self._count > 1

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._count += 1
