"""The attempts that run in this worker: what each is doing, and the one thread that keeps their leases."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from penstock.errors import Canceled, Drained, Fenced, Interruption, RedisUnavailable
from penstock.jobs import Claim, JobKey, Phase, Progress
from penstock.storage import records

#: Between two heartbeats of an attempt: often enough for a smooth progress bar and a quick cancel.
BEAT_S = 1.0
#: A new phase is told sooner, but not sooner than this: short jobs would do little else.
SOON_S = 0.25

log = structlog.get_logger(__name__)


class Attempt:
    """One claimed job on its way. Written by its own thread, read by the heartbeat's."""

    def __init__(self, claim: Claim, *, on_phase: Callable[[], None] = lambda: None) -> None:
        """Begin an attempt; `on_phase` is called when it enters a phase."""
        self.claim = claim
        self._phase = Phase.LOADING
        self._on_phase = on_phase
        self.progress = Progress()
        #: What this attempt stored so that the next one need not do it again.
        self.checkpoints = 0
        #: When it was told to stop, by the monotonic clock.
        self.stopped_at: float | None = None
        #: Several threads measure: the one that draws prompts and the one that takes outputs.
        self._seconds: dict[str, float] = {}
        self._lock = threading.Lock()
        self._stop: Interruption | None = None

    @property
    def phase(self) -> Phase:
        """What the attempt is doing."""
        return self._phase

    def enter(self, phase: Phase) -> None:
        """Go into a phase, or stay in it."""
        if phase is not self._phase:
            self._phase = phase
            self._on_phase()

    def check(self) -> None:
        """Raise the `Interruption` that ends this attempt, if there is one."""
        if self._stop is not None:
            raise self._stop

    def stop(self, reason: Interruption) -> None:
        """End the attempt at its next check; the first reason counts."""
        if self._stop is None:
            self._stop = reason
            self.stopped_at = time.monotonic()

    @property
    def lost(self) -> bool:
        """Whether the attempt is not its job's any more: whatever it still does is for nothing."""
        return isinstance(self._stop, Fenced)

    def advance(self, done: int) -> None:
        """Say how many prompts are done."""
        self.progress = Progress(done, self.progress.total, self.progress.unit, self.progress.message)

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Add the block's seconds to a metric."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.add_seconds(what, time.monotonic() - begun)

    def add_seconds(self, what: str, seconds: float) -> None:
        """Add to a metric."""
        with self._lock:
            self._seconds[what] = self._seconds.get(what, 0.0) + seconds

    def metrics(self) -> dict[str, float]:
        """Return the metrics so far, in milliseconds: `fetch_ms`, `preprocess_ms`, ..."""
        with self._lock:
            return {f"{what}_ms": round(seconds * 1000, 1) for what, seconds in self._seconds.items()}


class Heartbeat:
    """Renews the leases of all attempts from one thread, and tells each when it is canceled or lost."""

    def __init__(self, store: records.Runs) -> None:
        self._store = store
        self._attempts: dict[tuple[JobKey, int], Attempt] = {}
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._ended = threading.Event()
        self._draining = threading.Event()
        self._thread = threading.Thread(target=self._beat_until_end, name="heartbeat", daemon=True)
        self._thread.start()

    @contextmanager
    def watching(self, attempt: Attempt) -> Iterator[None]:
        """Keep the attempt's lease inside the block."""
        name = (attempt.claim.key, attempt.claim.fence)
        with self._lock:
            self._attempts[name] = attempt
        try:
            yield
        finally:
            with self._lock:
                del self._attempts[name]

    def hasten(self) -> None:
        """Beat soon: there is news."""
        self._news.set()

    def drain(self) -> None:
        """Stop every attempt: their jobs go back to the queue."""
        self._draining.set()
        for attempt in self._running():
            attempt.stop(Drained())

    def stuck_s(self) -> float:
        """Return for how long the most stubborn attempt has ignored that it lost its job: a device may hang."""
        now = time.monotonic()
        lost = [a.stopped_at for a in self._running() if a.lost and a.stopped_at is not None]
        return max((now - at for at in lost), default=0.0)

    def release_left(self) -> int:
        """Give back the jobs of attempts that do not end by themselves; return how many. Their fence is then stale."""
        left = self._running()
        for attempt in left:
            try:
                self._store.run(records.release(attempt.claim))
            except RedisUnavailable:
                log.warning("release.unanswered", job=str(attempt.claim.key))  # the lease ends by itself
        return len(left)

    def wait_for_drain(self, timeout_s: float) -> bool:
        """Wait for at most this long; True once the worker drains."""
        return self._draining.wait(timeout_s)

    def close(self) -> None:
        """Stop renewing."""
        self._ended.set()
        self._news.set()
        self._thread.join()

    def _running(self) -> list[Attempt]:
        with self._lock:
            return list(self._attempts.values())

    def _beat_until_end(self) -> None:
        while not self._ended.wait(SOON_S):
            self._news.wait(BEAT_S - SOON_S)
            self._news.clear()
            for attempt in self._running():
                if not attempt.lost:
                    self._beat(attempt)

    def _beat(self, attempt: Attempt) -> None:
        try:
            answer = self._store.run(_said(attempt))
        except RedisUnavailable:
            # The lease may run out meanwhile; if it does, the fence refuses what we write later.
            log.warning("heartbeat.unanswered", job=str(attempt.claim.key))
            return
        if answer == "cancel":
            attempt.stop(Canceled())
        elif answer == "lost":
            attempt.stop(Fenced())


def _said(attempt: Attempt) -> records.Command[str]:
    return records.heartbeat(attempt.claim, attempt.phase, attempt.progress, checkpoints=attempt.checkpoints)
