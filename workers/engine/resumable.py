"""A library's call in a thread of its own that stops at points between its steps, until the caller resumes it.

A pipeline makes all steps of an image in one call, and `generate` all tokens of a text. Held there, calls take turns,
other models run between their steps, and a canceled one ends at its next step.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

#: Called by the function at each point, with something for the caller.
Pause = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Paused:
    """The function stands at a point."""

    value: Any


@dataclass(frozen=True, slots=True)
class Returned:
    """The function returned a value."""

    value: Any


class _Dropped(BaseException):
    """Ends a function whose caller has dropped it."""


class Resumable:
    """A function that runs only while a caller waits in `resume`; it ends with `close`, or without a reference to this.

    It runs in the context that made this object, so its log lines are those of the job that began it.
    """

    def __init__(self, run: Callable[[Pause], Any]) -> None:
        self._go: SimpleQueue[bool] = SimpleQueue()
        self._came: SimpleQueue[Paused | Returned | BaseException] = SimpleQueue()
        # The thread knows the queues alone: a reference to `self` would keep it alive.
        self._thread = threading.Thread(
            target=copy_context().run, args=(_work, run, self._go, self._came), name="resumable", daemon=True
        )
        self._thread.start()
        self._end = weakref.finalize(self, self._go.put, False)
        self._end.atexit = False

    def resume(self) -> Paused | Returned:
        """Run on to the next point or the end; raise the function's error. Call it no more after the end."""
        self._go.put(True)
        came = self._came.get()
        if not isinstance(came, BaseException):
            return came
        try:
            raise came
        finally:
            del came  # the error's frames hold memory of the device, and this frame is one of them

    def close(self) -> None:
        """End the function and wait until what it held is free."""
        self._end()
        self._thread.join()


def _work(
    run: Callable[[Pause], Any], go: SimpleQueue[bool], came: SimpleQueue[Paused | Returned | BaseException]
) -> None:
    def pause(value: Any) -> None:
        came.put(Paused(value))
        if not go.get():
            raise _Dropped

    if not go.get():
        return
    try:
        value = run(pause)
    except _Dropped:
        return
    except BaseException as error:  # the caller raises it
        came.put(error)
    else:
        came.put(Returned(value))
