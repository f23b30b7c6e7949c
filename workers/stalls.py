"""Stalls: times in which a process did not run, because it was stopped or its machine had no processor time for it.

A thread that stands still in a process that runs is stuck. A thread that stands still with its process is not, and its
worker must not be replaced for that.
"""

from __future__ import annotations

from collections import deque

#: Seconds for which stalls are remembered, longer than any limit that they are counted against.
KEPT_S = 3600.0


class Stalls:
    """The stalls of this process, found by ticks that a thread sends every `every_s` seconds while the process runs.

    All times are seconds of the monotonic clock. Not safe for several threads.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._ticked_at: float | None = None
        #: Begin and end of each stall, oldest first.
        self._stalls: deque[tuple[float, float]] = deque()

    def tick(self, at: float) -> None:
        """Note that the process runs; the time since the last tick, less `every_s`, was a stall."""
        if self._ticked_at is not None and at - self._ticked_at > self._every_s:
            self._stalls.append((self._ticked_at + self._every_s, at))
        self._ticked_at = at
        while self._stalls and self._stalls[0][1] < at - KEPT_S:
            self._stalls.popleft()

    def lived_s(self, seconds: float, *, at: float) -> float:
        """Return how much of the last seconds the process ran, that is, without its stalls."""
        begun = at - seconds
        return seconds - sum(min(at, end) - max(begun, start) for start, end in self._stalls if end > begun)
