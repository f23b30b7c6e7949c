"""The turnstile: bounds what new submissions take of each turn of the event loop.

Without it, each turn would read every request that arrived, and an accepted job takes about 15 turns: a flood makes
turns so long that no job is accepted any more, and hundreds of requests pass before the first of them waits in line.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from operator import itemgetter
from typing import Protocol

#: Seconds of each turn of the event loop that decisions and refusals may take.
SHARE_S = 0.0003
#: Submissions that pass in each turn of the event loop, at most.
MAX_PASSING = 4
#: Seconds after which a refused submission is answered before newer ones.
OLD_S = 1.5
#: Part of the time between two turns that old submissions may take. Where other programs take the processors, turns
#: become 100 times longer, and `SHARE_S` of each would let clients wait for 15 s.
OLD_SHARE = 0.25
#: Seconds of one turn that they may take at most: a turn after an idle minute is long as well.
MAX_OLD_SHARE_S = 0.25


class Arrival(Protocol):
    """A submission that has arrived."""

    @property
    def is_refused(self) -> bool:
        """True where the submission is refused at the moment."""
        ...

    def answer(self) -> None:
        """Refuse the submission, or pass it on where it is not refused any more."""
        ...


class Turnstile:
    """Passes submissions on in the order of their arrival, and refuses others, the newest first.

    The oldest of the refused submissions is likely to be of a client that left. But one that has waited for `OLD_S` is
    next: otherwise a client that stays would wait until the flood ends. Old ones have a larger share of slow turns.
    """

    def __init__(
        self, call_soon: Callable[[Callable[[], None]], object], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """`call_soon` schedules a call for the next turn of the event loop."""
        self._call_soon = call_soon
        self._clock = clock
        #: Submissions with the times from which they are old.
        self._arrived: deque[tuple[float, Arrival]] = deque()
        self._refused: deque[tuple[float, Arrival]] = deque()
        self._spent_s = 0.0
        self._old_share_s = SHARE_S
        self._turned_s = clock()
        self._passed = 0
        self._is_scheduled = False

    def admit(self, arrival: Arrival) -> None:
        """Answer a submission now, or in a later turn where the shares of this turn are spent."""
        self._arrived.append((self._clock() + OLD_S, arrival))
        self._work()

    def _turn(self) -> None:
        self._is_scheduled, self._spent_s, self._passed = False, 0.0, 0
        before_s, self._turned_s = self._turned_s, self._clock()
        self._old_share_s = max(SHARE_S, min(OLD_SHARE * (self._turned_s - before_s), MAX_OLD_SHARE_S))
        if self._arrived or self._refused:
            self._work()

    def _work(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._turn)
        begun_s = self._clock() - self._spent_s
        while self._arrived and self._passed < MAX_PASSING and self._has_time(self._arrived):
            old_s, arrival = self._arrived.popleft()
            if arrival.is_refused:
                self._refused.append((old_s, arrival))
            else:
                self._passed += 1
                arrival.answer()
            self._spent_s = self._clock() - begun_s
        passing: list[tuple[float, Arrival]] = []
        while self._refused and self._has_time(self._refused):
            is_old = self._refused[0][0] <= self._clock()
            old_s, arrival = self._refused.popleft() if is_old else self._refused.pop()
            if arrival.is_refused:
                arrival.answer()
            else:  # it passes in a later turn: hundreds at once would make a turn of seconds
                passing.append((old_s, arrival))
            self._spent_s = self._clock() - begun_s
        if passing:
            self._arrived = deque(sorted([*passing, *self._arrived], key=itemgetter(0)))

    def _has_time(self, waiting: deque[tuple[float, Arrival]]) -> bool:
        """Return True where something is left of this turn's share for those who wait."""
        is_old = waiting[0][0] <= self._clock()
        return self._spent_s < (self._old_share_s if is_old else SHARE_S)
