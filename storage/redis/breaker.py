"""The breaker of a job store: one time-out answers those who wait behind it.

Without it, each group of calls waits for a time-out of its own while Redis hangs, and 60 submissions wait for 41 s.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.errors import RedisUnavailable

#: Seconds between two calls that ask a Redis that has not answered in time.
PROBE_EVERY_S = 1.0


class Breaker:
    """Refuses calls after a time-out, but for one probe per second, until Redis answers one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: The time of the next probe; None while Redis answers.
        self._probe_s: float | None = None

    def admit(self) -> None:
        """Raise `RedisUnavailable` where a call would only wait; return for all others and for the next probe."""
        if self._probe_s is None:
            return
        now_s = self._clock()
        if now_s < self._probe_s:
            raise RedisUnavailable("the job store does not answer", retry_after_s=2)
        self._probe_s = now_s + PROBE_EVERY_S

    def answered(self) -> None:
        """Record an answer of Redis, also one that is an error."""
        self._probe_s = None

    def timed_out(self) -> None:
        """Record a call without an answer."""
        if self._probe_s is None:
            self._probe_s = self._clock() + PROBE_EVERY_S
