"""Waits for an object store that is away: an attempt keeps its results in scratch, and its worker claims no job."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import structlog

from penstock.errors import ObjectStoreUnavailable
from penstock.storage.objects.base import ObjectStore
from penstock.workers.attempts import Attempt

T = TypeVar("T")

#: Pause before the second try in seconds; each further pause is twice as long.
FIRST_PAUSE_S = 0.25
#: Longest pause between two tries in seconds: a store that is back is noticed within this time.
MAX_PAUSE_S = 10.0

log = structlog.get_logger(__name__)


def pause_s(failures: int, draw: float) -> float:
    """Return the pause after so many failures in a row (1 or more), shortened by up to a half by `draw` (0..1)."""
    return min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 16)) * (1 - draw / 2)


class Wait:
    """One attempt's wait for the store; it begins with the first failure, and ends with the block."""

    def __init__(self, waits: StoreWaits, attempt: Attempt) -> None:
        self.failures = 0
        self._waits = waits
        self._attempt = attempt
        self._begun_s = time.monotonic()

    def __enter__(self) -> Wait:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self.failures:
            self._waits.end(self._attempt, answered=kind is None)

    def failed(self, error: ObjectStoreUnavailable) -> float:
        """Count a failure and return the seconds to pause before the next try."""
        self.failures += 1
        if self.failures == 1:
            self._waits.begin(self._attempt, self._begun_s, error)
        return pause_s(self.failures, random.random())  # noqa: S311


class StoreWaits:
    """The waits of all attempts of a worker. One attempt waits for `budget_s` in all, at most."""

    def __init__(self, objects: ObjectStore, budget_s: float) -> None:
        self._objects = objects
        self._budget_s = budget_s
        self._lock = threading.Lock()
        #: Attempts that wait.
        self._waiting = 0
        #: True from an attempt's failure until the store answers.
        self._away = False

    def store(self, attempt: Attempt) -> ObjectStore:
        """Return the object store whose calls wait for the store while it is away; `Interruption` ends a wait."""
        return cast("ObjectStore", _PatientStore(self._objects, self, attempt))

    def call(self, attempt: Attempt, act: Callable[[], T]) -> T:
        """Return the result of `act`, repeated while it raises `ObjectStoreUnavailable` and the budget lasts."""
        with self.wait(attempt) as wait:
            while True:
                try:
                    return act()
                except ObjectStoreUnavailable as error:
                    rest_s = wait.failed(error)
                    if attempt.waited_s >= self._budget_s:
                        raise
                attempt.rest(min(rest_s, self._budget_s - attempt.waited_s))
                attempt.check()

    def wait(self, attempt: Attempt) -> Wait:
        """Return a wait for one step of an attempt; if its block ends without an error, the store has answered."""
        return Wait(self, attempt)

    def begin(self, attempt: Attempt, begun_s: float, error: ObjectStoreUnavailable) -> None:
        """Begin an attempt's wait, with the failed call that began at `begun_s` by the monotonic clock."""
        attempt.begin_wait(begun_s, budget_s=self._budget_s)
        with self._lock:
            self._waiting += 1
            self._away = True
        log.warning("store.away", detail=error.detail)

    def away(self) -> bool:
        """Return True while no job may be claimed. After a failure, ask the store before each claim."""
        if not self._away:
            return False
        try:
            self._objects.ping()
        except ObjectStoreUnavailable:
            return True
        with self._lock:
            # A store may answer and yet refuse what an attempt waits for: then each slot waits with its own job.
            self._away = self._waiting > 0
        return False

    def end(self, attempt: Attempt, *, answered: bool) -> None:
        """End an attempt's wait."""
        attempt.end_wait()
        with self._lock:
            self._waiting -= 1
            self._away = self._away and not answered
        log.info("store.back" if answered else "store.not_awaited", waited_s=round(attempt.waited_s, 1))


class _PatientStore:
    """An object store whose calls are repeated while it is away. `read` goes on where the store went away."""

    def __init__(self, objects: ObjectStore, waits: StoreWaits, attempt: Attempt) -> None:
        self._objects = objects
        self._waits = waits
        self._attempt = attempt

    def list(self, prefix: str) -> Iterator[Any]:
        """Yield a listing that was read as a whole."""
        return iter(self._waits.call(self._attempt, lambda: [*self._objects.list(prefix)]))

    def read(self, key: str, *, start: int = 0, end: int | None = None, etag: str | None = None) -> Iterator[bytes]:
        """Yield the bytes from `start` to before `end`. After a wait, the rest is read.

        Give an etag: without one, the rest may be that of a newer object.
        """
        at = start
        chunks = self._objects.read(key, start=at, end=end, etag=etag)

        def step() -> bytes | None:
            nonlocal chunks
            try:
                return next(chunks, None)
            except ObjectStoreUnavailable:
                chunks = self._objects.read(key, start=at, end=end, etag=etag)
                raise

        while (chunk := self._waits.call(self._attempt, step)) is not None:
            at += len(chunk)
            yield chunk

    def __getattr__(self, name: str) -> Any:
        act = getattr(self._objects, name)
        return lambda *args, **options: self._waits.call(self._attempt, lambda: act(*args, **options))
