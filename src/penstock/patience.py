"""The time of a request to the API: all its calls to Redis share it, so that its client waits for one time-out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

#: Seconds after the begin of a request at which its calls must have ended.
REQUEST_S = 4.0
#: Seconds that each call may take at least, however long its request has lasted.
LEAST_TIMEOUT_S = 0.5


@dataclass(frozen=True, slots=True)
class _Patience:
    """The time of a request: its begin (monotonic), and the seconds that its client waited in line."""

    begun_s: float
    waited_s: float


_patience: ContextVar[_Patience | None] = ContextVar("patience", default=None)


@contextmanager
def one_patience(waited_s: float = 0.0) -> Iterator[None]:
    """Let the calls of this task inside the block share `REQUEST_S`, with all that happens between them.

    Without it, a request of several calls would wait for a time-out after each slow answer. The `waited_s` in which its
    client waited in line count too, and in the time of each call. A block inside another one shares the outer one's.
    """
    if _patience.get() is not None:
        yield
        return
    token = _patience.set(_Patience(time.monotonic() - waited_s, waited_s))
    try:
        yield
    finally:
        _patience.reset(token)


def limit_s(longest_s: float) -> float:
    """Return the seconds that this task's next call may take, where a call takes no longer than `longest_s`."""
    patience = _patience.get()
    if patience is None:
        return longest_s
    left_s = patience.begun_s + REQUEST_S - time.monotonic()
    return min(longest_s, max(LEAST_TIMEOUT_S, min(longest_s - patience.waited_s, left_s)))
