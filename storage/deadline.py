"""The time limit of a request to the API: all its calls to Redis share it, so a client waits for one time-out only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

#: Seconds after the start of a request at which its calls must have ended.
REQUEST_S = 4.0
#: Most seconds that a client may have waited in line before its job is stored. The catalogue, the reservation, the put
#: and the confirmation after it then end within 5 s, unless the object store or the event loop is slow.
STORABLE_S = 2.5
#: Seconds that each call may take at least, however long its request has lasted.
LEAST_TIMEOUT_S = 0.5


@dataclass(frozen=True, slots=True)
class _Deadline:
    """The start of a request (monotonic seconds), and the seconds that its client waited in line."""

    begun_s: float
    waited_s: float


_deadline: ContextVar[_Deadline | None] = ContextVar("deadline", default=None)


@contextmanager
def request_deadline(waited_s: float = 0.0) -> Iterator[None]:
    """Let this task's calls to Redis inside the block share one time limit, `REQUEST_S` from the start of the block.

    Without it, each call of a request could wait for a time-out of its own. The time between calls counts. `waited_s`,
    the seconds that the client waited before, count as well, and also shorten the limit of each single call. A block
    inside another one shares the limit of the outer one.
    """
    if _deadline.get() is not None:
        yield
        return
    token = _deadline.set(_Deadline(time.monotonic() - waited_s, waited_s))
    try:
        yield
    finally:
        _deadline.reset(token)


def time_to_store() -> bool:
    """Return False where the client of this task's request waited for more than `STORABLE_S`: it is to come again."""
    deadline = _deadline.get()
    return deadline is None or deadline.waited_s <= STORABLE_S


def limit_s(longest_s: float) -> float:
    """Return the seconds that this task's next call may take: `longest_s`, or less inside `request_deadline`."""
    deadline = _deadline.get()
    if deadline is None:
        return longest_s
    left_s = deadline.begun_s + REQUEST_S - time.monotonic()
    return min(longest_s, max(LEAST_TIMEOUT_S, min(longest_s - deadline.waited_s, left_s)))


class Pause:
    """A pause after a time-out: calls fail at once instead of waiting for a time-out of their own, and few probe."""

    def __init__(self, pause_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._pause_s = pause_s
        self._clock = clock
        #: Time of the next probe; None = no pause.
        self._probe_at_s: float | None = None

    def begin(self) -> None:
        """Begin the pause; a later time-out does not put off the next probe."""
        if self._probe_at_s is None:
            self._probe_at_s = self._clock() + self._pause_s

    def end(self) -> None:
        """End the pause: a call was answered."""
        self._probe_at_s = None

    def admits(self) -> bool:
        """Return True for a call that may be sent: any without a pause, and one for each `pause_s` of a pause."""
        if self._probe_at_s is None:
            return True
        now = self._clock()
        if now < self._probe_at_s:
            return False
        self._probe_at_s = now + self._pause_s
        return True
