"""A function in a thread of its own that stops at points between its steps, until the caller resumes it.

The library's pipelines run all steps of an image in one call. Held there, the calls of
several images take turns, other models run between their steps, and a canceled one ends at its next step.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
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
    """A function that runs only while a caller waits in `resume`, and ends with the last reference to this object."""

    def __init__(self, run: Callable[[Pause], Any]) -> None:
        self._go: SimpleQueue[bool] = SimpleQueue()
        self._came: SimpleQueue[Paused | Returned | BaseException] = SimpleQueue()
        weakref.finalize(self, self._go.put, False)
        # The thread knows the queues alone: a reference to `self` would keep it alive.
        threading.Thread(target=_work, args=(run, self._go, self._came), name="image", daemon=True).start()

    def resume(self) -> Paused | Returned:
        """Run on to the next point or the end; raise the function's error. Call it no more after the end."""
        self._go.put(True)
        came = self._came.get()
        if isinstance(came, BaseException):
            raise came
        return came


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
