"""Waking of threads that wait for the engine, one after the other.

A thread that wakes needs the interpreter, which the thread that woke it still has. Where a batch's answers woke all
their jobs at once, these fights cost more processor time than the work (`docs/decisions/0112-performance.md`).
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Protocol


class Waiter(Protocol):
    """A lock for which a thread waits."""

    def release(self) -> None:
        """Wake the thread."""
        ...


class Bell:
    """The place where one thread waits for what another one tells it. The lock must be held for every method.

    A `threading.Condition` for a single thread that costs nothing where nobody waits.
    """

    __slots__ = ("_lock", "_waiter")

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._waiter: Waiter | None = None

    def wait(self, timeout_s: float | None = None, *, wakes: Wakes | None = None) -> None:
        """Free the lock, wait for a ring or the timeout, and take the lock again; first wake the next of `wakes`."""
        waiter = threading.Lock()
        waiter.acquire()
        self._waiter = waiter
        self._lock.release()
        try:
            if wakes is not None:
                wakes.pass_on()
            waiter.acquire(timeout=-1 if timeout_s is None else timeout_s)
        finally:
            self._lock.acquire()
            self._waiter = None

    def ring(self) -> None:
        """Wake the thread that waits, if any."""
        if (waiter := self._waiter) is not None:
            self._waiter = None
            waiter.release()

    def ring_later(self, turns: deque[Waiter]) -> None:
        """Add what wakes the thread that waits to `turns`, once, for a later moment."""
        if (waiter := self._waiter) is not None:
            self._waiter = None
            turns.append(waiter)


class Wakes:
    """Threads that wait and are to be woken in turn: each one that wakes calls `pass_on`. Safe for many threads.

    A thread that stopped waiting by itself calls it too, so that its own turn, which comes to nothing, is made up for.
    """

    def __init__(self) -> None:
        self._next: deque[Waiter] = deque()

    def add(self, bell: Bell) -> None:
        """Wake the thread at a bell in its turn. The bell's lock must be held."""
        bell.ring_later(self._next)

    def pass_on(self) -> None:
        """Wake the next thread, if any."""
        try:
            waiter = self._next.popleft()
        except IndexError:
            return
        waiter.release()
