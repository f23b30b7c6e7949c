"""The attempts that run in this worker: what each is doing, and the one thread that keeps their leases."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import structlog

from penstock.errors import Canceled, Drained, Fenced, Interruption, RedisUnavailable
from penstock.jobs import Claim, JobKey, Phase, Progress
from penstock.storage import records
from penstock.workers.artifacts import Preview

#: Between two heartbeats of an attempt: often enough for a smooth progress bar and a quick cancel.
BEAT_S = 1.0
#: What followers are told of a job's text, at most; whatever its length, the result has all of it.
MAX_TOLD_CHARS = 4_000_000
#: What is told of a job's text at a time, at most: 64 kB as JSON, unless it is full of rare characters.
PIECE_CHARS = 16_000
#: What followers are shown of a job's pictures on their way, at most: Redis keeps it for as long as the job.
MAX_SHOWN_BYTES = 2_000_000
#: So that a twentieth, added twenty times, is one.
_ROUNDING = 1e-6
#: A new phase is told sooner, but not sooner than this: short jobs would do little else.
SOON_S = 0.25

log = structlog.get_logger(__name__)


class Attempt:
    """One claimed job on its way. Written by its own thread, read by the heartbeat's."""

    def __init__(self, claim: Claim, *, on_news: Callable[[], None] = lambda: None) -> None:
        """Begin an attempt; `on_news` is called when it enters a phase or says something."""
        self.claim = claim
        self._phase = Phase.LOADING
        self._on_news = on_news
        self.progress = Progress()
        #: What this attempt stored so that the next one need not do it again.
        self.checkpoints = 0
        #: Whether the job has anything saved, by this attempt or another.
        self.has_saved = False
        #: Of its result, if later jobs may have that too.
        self.mark: str | None = None
        #: When it was told to stop, by the monotonic clock.
        self.stopped_at: float | None = None
        #: Several threads measure: the one that draws prompts and the one that takes outputs.
        self._seconds: dict[str, float] = {}
        #: Of what was fetched.
        self._input_bytes = 0
        #: The device's batches that had prompts of this attempt, and all prompts in them.
        self._batches, self._batched = 0, 0
        #: What runners and caches counted.
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._stop: Interruption | None = None
        #: Text that the job's followers were not told yet, and where it stands in the whole.
        self._untold = ""
        #: Held by whoever tells it: pieces must come in their order.
        self.telling = threading.Lock()
        self._told_chars = 0
        #: Before this attempt, in prompts; how many prompts it is further; and how much of the unit each counts for.
        self._before, self._further, self._steps = 0, 0.0, 1
        self._preview: Preview | None = None
        self._shown_bytes = 0

    @property
    def phase(self) -> Phase:
        """What the attempt is doing."""
        return self._phase

    def enter(self, phase: Phase) -> None:
        """Go into a phase, or stay in it."""
        if phase is not self._phase:
            self._phase = phase
            self._on_news()

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

    def plan(self, done: int, total: int | None, unit: str, *, steps: int) -> None:
        """Say how many prompts are done and how many there are, and how many of the unit each counts for."""
        self._before, self._steps = done, steps
        self.progress = Progress(done * steps, None if total is None else total * steps, unit)

    def advance(self, done: int) -> None:
        """Say how many prompts are done."""
        with self._lock:
            self._count(done * self._steps)

    def saved(self, count: int) -> None:
        """Count checkpoints; 0 says that there are some of earlier attempts."""
        self.checkpoints += count
        self.has_saved = True

    def say(self, text: str) -> None:
        """Take a further piece of the result's text for the job's followers, who get it with the next beat."""
        with self._lock:
            more = text[: max(0, MAX_TOLD_CHARS - self._told_chars - len(self._untold))]
            self._untold += more
        if more:
            self._on_news()

    def piece(self) -> tuple[int, str]:
        """Return the next piece of text to tell and where it stands in the whole, in characters; it may be empty."""
        with self._lock:
            return self._told_chars, self._untold[:PIECE_CHARS]

    def told(self, piece: str) -> None:
        """Note that a piece was told."""
        with self._lock:
            self._told_chars += len(piece)
            self._untold = self._untold[len(piece) :]

    def show(self, preview: Preview) -> None:
        """Take what an artifact looks like so far for the job's followers, who see the latest with the next beat."""
        with self._lock:
            if self._shown_bytes + len(preview.picture) > MAX_SHOWN_BYTES:
                return
            self._preview = preview
        self._on_news()

    def preview(self) -> Preview | None:
        """Return what is to be shown and was not yet; from now on it was."""
        with self._lock:
            preview, self._preview = self._preview, None
            self._shown_bytes += len(preview.picture) if preview else 0
            return preview

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

    def fetched(self, size_bytes: int) -> None:
        """Count a file that was fetched."""
        self._input_bytes += size_bytes

    def batched(self, prompts: int, further: float) -> None:
        """Count a batch of so many prompts, of this job and of others, and how many prompts this job is further."""
        with self._lock:
            self._batches, self._batched = self._batches + 1, self._batched + prompts
            self._further += further
            if self._steps > 1:  # else what counts is taken by the processor, too
                self._count(int((self._before + self._further) * self._steps + _ROUNDING))

    def count(self, counts: Mapping[str, int]) -> None:
        """Add to what is counted, by name."""
        with self._lock:
            self._counts.update(counts)

    def metrics(self) -> dict[str, float]:
        """Return the metrics so far: `fetch_ms`, `preprocess_ms`, ..., `input_bytes` of media, and how many `batches`
        of the device it shared, with how many prompts in each on average: `batch_size`; and what was counted."""
        with self._lock:
            found: dict[str, float] = {f"{what}_ms": round(s * 1000, 1) for what, s in self._seconds.items()}
            if self._input_bytes:
                found["input_bytes"] = self._input_bytes
            if self._batches:
                found |= {"batches": self._batches, "batch_size": round(self._batched / self._batches, 2)}
            return found | self._counts

    def _count(self, done: int) -> None:
        """Note progress, which never gets less. The lock must be held."""
        self.progress = replace(self.progress, done=max(done, self.progress.done))


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

    def tell(self, attempt: Attempt) -> None:
        """Tell the job's followers what its result's text is so far; without Redis they get it at the end.

        And show them the latest picture of it, if there is a new one; without Redis they do not see it.
        """
        with attempt.telling:
            if (preview := attempt.preview()) is not None:
                self._show(attempt, preview)
            while (piece := attempt.piece())[1]:
                if not self._tell(attempt, *piece):
                    return

    def beat(self, attempt: Attempt) -> None:
        """Renew an attempt's lease now, and store how far it got."""
        if not attempt.lost:
            self._beat(attempt)

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
                self.beat(attempt)
                if not attempt.lost:
                    self.tell(attempt)

    def _tell(self, attempt: Attempt, at: int, piece: str) -> bool:
        try:
            held = self._store.run(records.say(attempt.claim, piece, at=at))
        except RedisUnavailable:
            log.warning("say.unanswered", job=str(attempt.claim.key))
            return False
        attempt.told(piece)
        return held

    def _show(self, attempt: Attempt, preview: Preview) -> None:
        try:
            self._store.run(records.show(attempt.claim, preview.name, preview.media_type, preview.picture))
        except RedisUnavailable:
            log.warning("show.unanswered", job=str(attempt.claim.key))

    def _beat(self, attempt: Attempt) -> None:
        try:
            answer = self._store.run(_state(attempt))
        except RedisUnavailable:
            # The lease may run out meanwhile; if it does, the fence refuses what we write later.
            log.warning("heartbeat.unanswered", job=str(attempt.claim.key))
            return
        if answer == "cancel":
            attempt.stop(Canceled())
        elif answer == "lost":
            attempt.stop(Fenced())


def _state(attempt: Attempt) -> records.Command[str]:
    return records.heartbeat(attempt.claim, attempt.phase, attempt.progress, checkpoints=attempt.checkpoints)
