"""The time limit of a request to the API: all its calls to Redis share it, so a client waits for one time-out only."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

#: Seconds after the start of a request at which its calls must have ended.
REQUEST_S = 4.0
#: Seconds that each call may take at least, however long its request has lasted.
LEAST_TIMEOUT_S = 0.5


@dataclass(frozen=True, slots=True)
class _Patience:
    """The start of a request and its end (monotonic seconds), and the seconds that its client waited in line."""

    begun_s: float
    waited_s: float
    end_s: float


_patience: ContextVar[_Patience | None] = ContextVar("patience", default=None)
#: Seconds that the client had waited before the request reached the app.
_before_s: ContextVar[float] = ContextVar("before_s", default=0.0)


@contextmanager
def after_waiting(waited_s: float) -> Iterator[None]:
    """Let the requests whose tasks are created inside the block count `waited_s`, which their client has waited."""
    token = _before_s.set(waited_s)
    try:
        yield
    finally:
        _before_s.reset(token)


def waited_before_s() -> float:
    """Return the seconds that the client of this task's request had waited before the request reached the app."""
    return _before_s.get()


@contextmanager
def one_patience(waited_s: float = 0.0) -> Iterator[None]:
    """Let this task's calls to Redis inside the block share one time limit, `REQUEST_S` from the start of the block.

    Without it, each call of a request could wait for a time-out of its own. The time between calls counts. `waited_s`,
    the seconds that the client waited before, count as well, and also shorten the limit of each single call. A block
    inside another one shares the limit of the outer one.
    """
    if _patience.get() is not None:
        yield
        return
    now_s = time.monotonic()
    begun_s = now_s - waited_s
    token = _patience.set(_Patience(begun_s, waited_s, max(begun_s + REQUEST_S, now_s + LEAST_TIMEOUT_S)))
    try:
        yield
    finally:
        _patience.reset(token)


def is_time_over() -> bool:
    """Return True where the time limit of this task's request is over: nothing new may begin for it.

    A request that waited in line for longer than its limit still has `LEAST_TIMEOUT_S`.
    """
    patience = _patience.get()
    return patience is not None and time.monotonic() > patience.end_s


def limit_s(longest_s: float) -> float:
    """Return the seconds that this task's next call may take: `longest_s`, or less inside `one_patience`."""
    patience = _patience.get()
    if patience is None:
        return longest_s
    left_s = patience.begun_s + REQUEST_S - time.monotonic()
    return min(longest_s, max(LEAST_TIMEOUT_S, min(longest_s - patience.waited_s, left_s)))
