"""The attempts that run in this worker, and the one thread that renews their leases."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import structlog

from penstock.errors import Canceled, Drained, Fenced, Interruption, JobStoreError
from penstock.jobs import Artifact, Claim, JobKey, Phase, Progress, Usage
from penstock.processors.base import Output, Prompt
from penstock.storage.journal.journal import RunLast
from penstock.storage.redis import job_logs, records
from penstock.workers.artifacts import Preview
from penstock.workers.job_log import AttemptLog
from penstock.workers.usage_counts import Counted

#: Seconds between two heartbeats of an attempt: often enough for a smooth progress bar and a quick cancel.
BEAT_S = 1.0
#: Characters of partial text sent to a job's followers, at most. The result always holds the whole text.
MAX_SENT_CHARS = 4_000_000
#: Characters of partial text sent at once, at most: 64 kB as JSON, unless most characters need escapes.
PART_CHARS = 16_000
#: Bytes of previews sent for one job, at most: Redis keeps them for as long as the job.
MAX_PREVIEWS_BYTES = 2_000_000
#: Message of the progress of an attempt that waits.
STORE_AWAY = "waiting for the object store"
#: The same of one whose media are fetched, and which has lent its slot.
NO_SLOT = "waiting for a free slot, with its media fetched"
#: Rounding tolerance in units of progress: a sum of shares in floats may lie slightly below a whole number.
_ROUNDING = 1e-6
#: Shortest time between two heartbeats, in seconds: a short job changes its phase often.
SOON_S = 0.25

log = structlog.get_logger(__name__)


class Attempt:
    """One claimed job while it runs, shared by the threads of its slot, of the engine and of the heartbeat.

    `_lock` guards the times, the batches, the counts, the unsent text, the preview and each advance of the progress.
    """

    def __init__(self, claim: Claim, *, on_news: Callable[[], None] = lambda: None) -> None:
        """Begin an attempt; `on_news` is called when the attempt enters a phase or streams text."""
        self.claim = claim
        self._phases = [(Phase.LOADING, 0)]
        self._begun_s = time.monotonic()
        self._on_news = on_news
        self.progress = Progress()
        #: Number of checkpoints that this attempt stored for the next one.
        self.checkpoints = 0
        #: Progress at the latest checkpoint.
        self._saved = Progress()
        #: True when the job has checkpoints, of this attempt or an earlier one.
        self.has_saved = False
        #: Fingerprint of the result, if later jobs may reuse the result.
        self.fingerprint: str | None = None
        #: Time of the request to stop, by the monotonic clock.
        self.stopped_at: float | None = None
        #: Seconds by metric, added by the thread that draws prompts and the thread that reads outputs.
        self._seconds: dict[str, float] = {}
        #: Bytes of fetched media.
        self._input_bytes = 0
        #: Seconds of the device; None before the first step.
        self._device_s: float | None = None
        self._used = Counted()
        #: Number of device batches with prompts of this attempt.
        self._batches = 0
        #: Number of all prompts in these batches, of all jobs.
        self._batched = 0
        #: Counts from runners and caches, by name.
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._stop: Interruption | None = None
        #: Set when the attempt is asked to stop.
        self._stopping = threading.Event()
        #: Seconds of ended waits for the object store, and the beginning of the present wait by the monotonic clock.
        self._waited_s = 0.0
        self._waiting_since: float | None = None
        self._wait_budget_s = math.inf
        #: The same of waits for a slot, which have no budget.
        self._slot_waited_s = 0.0
        self._slot_awaited_since: float | None = None
        #: Text not sent to the job's followers yet.
        self._unsent = ""
        #: Number of characters sent to the job's followers.
        self._sent_chars = 0
        #: Held while text is sent: parts must arrive in order.
        self.sending = threading.Lock()
        #: Runs the last command of the attempt [as any other].
        self.run_last: RunLast | None = None
        #: Prompts done by earlier attempts.
        self._done_before = 0
        #: Prompts done by this attempt, with the finished shares of the others.
        self._done_here = 0.0
        #: Units of progress per prompt.
        self._steps = 1
        self._preview: Preview | None = None
        self._previews_bytes = 0
        #: The lines of the processor and the runner.
        self.lines = AttemptLog()

    @property
    def phase(self) -> Phase:
        """The attempt's current phase."""
        return self._phases[-1][0]

    @property
    def phases(self) -> records.PhaseStarts:
        """The phases so far, each with the microseconds from the attempt's start to its own."""
        return tuple(self._phases)

    def enter(self, phase: Phase) -> None:
        """Enter a phase, or stay in it."""
        if phase is not self.phase:
            self._phases.append((phase, int((time.monotonic() - self._begun_s) * 1e6)))
            self._on_news()

    def check(self) -> None:
        """Raise the `Interruption` that ends this attempt, if one was requested."""
        if self._stop is not None:
            raise self._stop

    def stop(self, reason: Interruption) -> None:
        """End the attempt at its next check; the first reason counts."""
        if self._stop is None:
            self._stop = reason
            self.stopped_at = time.monotonic()
            self._stopping.set()

    def rest(self, seconds: float) -> None:
        """Return after some seconds, or as soon as the attempt is asked to stop."""
        self._stopping.wait(seconds)

    def begin_wait(self, begun_s: float, *, budget_s: float) -> None:
        """Begin to wait for the object store, since `begun_s` by the monotonic clock; waits count up to a budget."""
        with self._lock:
            self._waiting_since, self._wait_budget_s = begun_s, budget_s
        self._on_news()

    def end_wait(self) -> None:
        """End the wait for the object store."""
        with self._lock:
            if self._waiting_since is not None:
                self._waited_s += time.monotonic() - self._waiting_since
            self._waiting_since = None
        self._on_news()

    def wait_for_slot(self, waits: bool) -> None:
        """Begin or end to wait for a slot."""
        with self._lock:
            if self._slot_awaited_since is not None:
                self._slot_waited_s += time.monotonic() - self._slot_awaited_since
            self._slot_awaited_since = time.monotonic() if waits else None
        self._on_news()

    @property
    def age_s(self) -> float:
        """The seconds since the attempt's start."""
        return time.monotonic() - self._begun_s

    @property
    def waits(self) -> bool:
        """True while the attempt waits for the object store."""
        return self._waiting_since is not None

    @property
    def waited_s(self) -> float:
        """The seconds that this attempt waited for the object store, up to the budget."""
        with self._lock:
            since = self._waiting_since
            waited_s = self._waited_s + (0.0 if since is None else time.monotonic() - since)
            return min(self._wait_budget_s, waited_s)

    @property
    def idle_s(self) -> float:
        """The seconds of all waits, for the object store and for a slot; they do not count as execution time."""
        with self._lock:
            since = self._slot_awaited_since
            slot_s = self._slot_waited_s + (0.0 if since is None else time.monotonic() - since)
        return self.waited_s + slot_s

    @property
    def message(self) -> str | None:
        """The reason for which the attempt waits; None if it does not."""
        if self.waits:
            return STORE_AWAY
        return None if self._slot_awaited_since is None else NO_SLOT

    @property
    def lost(self) -> bool:
        """True when the job no longer belongs to this attempt: its results will be discarded."""
        return isinstance(self._stop, Fenced)

    def plan(self, done: int, total: int | None, unit: str, *, steps: int) -> None:
        """Set how many prompts are done, how many there are, and how many units of progress each counts for."""
        self._done_before, self._steps = done, steps
        self.progress = Progress(done * steps, None if total is None else total * steps, unit)

    def advance(self, done: int) -> None:
        """Set how many prompts are done."""
        with self._lock:
            self._count(done * self._steps)

    def saved(self, count: int) -> None:
        """Add to the number of checkpoints that this attempt stored; 0 if only earlier attempts stored checkpoints."""
        self.checkpoints += count
        self.has_saved = True
        self._saved = self.progress

    @property
    def shown(self) -> Progress:
        """The progress that users see: of a part, only what is saved counts for its job."""
        if self.claim.part is None:
            return self.progress
        return replace(self.progress, done=self._saved.done)

    def say(self, text: str) -> None:
        """Queue a further part of the result's text; the next heartbeat sends it to the job's followers."""
        with self._lock:
            more = text[: max(0, MAX_SENT_CHARS - self._sent_chars - len(self._unsent))]
            self._unsent += more
        if more:
            self._on_news()

    def next_text(self) -> tuple[int, str]:
        """Return the next part of the unsent text and its offset in the whole text in characters; it may be empty."""
        with self._lock:
            return self._sent_chars, self._unsent[:PART_CHARS]

    def sent(self, text: str) -> None:
        """Mark a part of the text as sent."""
        with self._lock:
            self._sent_chars += len(text)
            self._unsent = self._unsent[len(text) :]

    def show(self, preview: Preview) -> None:
        """Queue a preview of an artifact; the next heartbeat sends the latest one to the job's followers."""
        with self._lock:
            if self._previews_bytes + len(preview.image) > MAX_PREVIEWS_BYTES:
                return
            self._preview = preview
        self._on_news()

    def preview(self) -> Preview | None:
        """Return the queued preview and remove it from the queue."""
        with self._lock:
            preview, self._preview = self._preview, None
            self._previews_bytes += len(preview.image) if preview else 0
            return preview

    def timed(self, what: str) -> AbstractContextManager[None]:
        """Return a context manager that adds the duration of its block, in seconds, to a metric."""
        return _Timed(self.add_seconds, what)

    def add_seconds(self, what: str, seconds: float) -> None:
        """Add seconds to a metric."""
        with self._lock:
            self._seconds[what] = self._seconds.get(what, 0.0) + seconds

    def seconds_of(self, what: str) -> float:
        """Return the seconds of a metric so far."""
        return self._seconds.get(what, 0.0)

    def fetched(self, size_bytes: int) -> None:
        """Count the bytes of a fetched file."""
        self._input_bytes += size_bytes

    def batched(self, prompts: int, progress: float) -> None:
        """Count a batch with so many prompts, of all jobs; it advanced this job by `progress` prompts."""
        with self._lock:
            self._batches, self._batched = self._batches + 1, self._batched + prompts
            self._done_here += progress
            if self._steps > 1:  # with one step per prompt, `advance` counts the progress
                self._count(int((self._done_before + self._done_here) * self._steps + _ROUNDING))

    def count(self, counts: Mapping[str, int]) -> None:
        """Add to the counts, by name."""
        with self._lock:
            self._counts.update(counts)

    def metrics(self) -> dict[str, float]:
        """Return the metrics so far, by name.

        They are times (`fetch_ms`, `preprocess_ms`, ...), `input_bytes` of media, the number of device `batches` with
        prompts of this attempt, the mean number of prompts in each (`batch_size`), and what the runners counted.
        """
        with self._lock:
            found: dict[str, float] = {f"{what}_ms": round(s * 1000, 1) for what, s in self._seconds.items()}
            if self._input_bytes:
                found["input_bytes"] = self._input_bytes
            if self._batches:
                found |= {"batches": self._batches, "batch_size": round(self._batched / self._batches, 2)}
            return found | self._counts

    def took_device(self, seconds: float) -> None:
        """Count seconds of the device."""
        with self._lock:
            self._device_s = (self._device_s or 0.0) + seconds

    def gave(self, prompt: Prompt) -> None:
        """Count the tokens and pixels of a prompt."""
        with self._lock:
            self._used = self._used.prompt(prompt)

    def received(self, output: Output) -> None:
        """Count what the runner counted in a final output, and its tokens."""
        self.count(output.counts)
        with self._lock:
            self._used = self._used.output(output)

    def usage(self, artifacts: Sequence[Artifact], data: Mapping[str, Any] | None = None) -> Usage:
        """Return the counted resources of the attempt, whose result has these artifacts and data."""
        used = self._used.result(data)
        return Usage(
            self._device_s, self._input_bytes, sum(artifact.size_bytes for artifact in artifacts),
            used.tokens_in, used.tokens_out, used.pixels,
        )  # fmt: skip

    def _count(self, done: int) -> None:
        """Set the progress, which never decreases. The lock must be held."""
        self.progress = replace(self.progress, done=max(done, self.progress.done))


class _Timed:
    """A block that adds its duration in seconds to a metric. As generators, the blocks of a job would cost it 20 us."""

    __slots__ = ("_add", "_begun_s", "_what")

    def __init__(self, add: Callable[[str, float], None], what: str) -> None:
        self._add, self._what = add, what

    def __enter__(self) -> None:
        self._begun_s = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._add(self._what, time.monotonic() - self._begun_s)


class Heartbeat:
    """Renews the leases of all attempts from one thread, and stops attempts that are canceled or lost."""

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
        """Renew the attempt's lease while the block runs. An attempt that begins after `drain` is stopped at once."""
        name = (attempt.claim.key, attempt.claim.fence)
        with self._lock:
            self._attempts[name] = attempt
        if self._draining.is_set():
            attempt.stop(Drained())
        try:
            yield
        finally:
            with self._lock:
                del self._attempts[name]

    def hasten(self) -> None:
        """Send the next heartbeat soon: an attempt has news."""
        if not self._news.is_set():  # `set` takes a lock that the other slots want too
            self._news.set()

    def send_news(self, attempt: Attempt) -> None:
        """Send the unsent text and the latest preview to the job's followers.

        Without Redis, followers get the text at the end, and no preview.
        """
        with attempt.sending:
            if (preview := attempt.preview()) is not None:
                self._send_preview(attempt, preview)
            while (part := attempt.next_text())[1]:
                if not self._send_text(attempt, *part):
                    return

    def send_lines(self, attempt: Attempt, *, last: bool) -> None:
        """Store the lines of the processor and the runner; the `last` time with the latest of all. May lose them."""
        with attempt.sending:
            while (part := attempt.lines.next_part(last=last)) is not None:
                rows = [(line.at_s, line.source, line.level, line.text) for line in part.lines]
                try:
                    held = self._store.run(job_logs.store_lines(attempt.claim, part.number, rows, cut=part.cut))
                except JobStoreError:
                    log.warning("lines.not_stored", job=str(attempt.claim.key))
                    return
                attempt.lines.stored()
                if not held:
                    return

    def beat(self, attempt: Attempt) -> None:
        """Renew an attempt's lease now, and store its progress."""
        if not attempt.lost:
            self._beat(attempt)

    def drain(self) -> None:
        """Stop every attempt; their jobs return to the queue."""
        self._draining.set()
        for attempt in self._running():
            attempt.stop(Drained())

    def stuck_s(self) -> float:
        """Return the longest time, in seconds, that an attempt has run on since it lost its job."""
        now = time.monotonic()
        lost = [a.stopped_at for a in self._running() if a.lost and a.stopped_at is not None]
        return max((now - at for at in lost), default=0.0)

    def release_left(self) -> int:
        """Put the jobs of all running attempts back into their queues; return the number of these attempts."""
        left = self._running()
        for attempt in left:
            try:
                self._store.run(records.release(attempt.claim, attempt.phases))
            except JobStoreError:
                log.warning("release.failed", job=str(attempt.claim.key))  # the lease ends by itself
        return len(left)

    def wait_for_drain(self, timeout_s: float) -> bool:
        """Wait for at most `timeout_s`; return True once the worker drains."""
        return self._draining.wait(timeout_s)

    def close(self) -> None:
        """Stop renewing leases."""
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
                if attempt.age_s < SOON_S:
                    continue  # its lease is fresh, and most short jobs end before anybody looks
                self.beat(attempt)
                if not attempt.lost:
                    self.send_news(attempt)
                    self.send_lines(attempt, last=False)

    def _send_text(self, attempt: Attempt, at: int, text: str) -> bool:
        try:
            held = self._store.run(records.stream_text(attempt.claim, text, at=at))
        except JobStoreError:
            log.warning("text.not_sent", job=str(attempt.claim.key))
            return False
        attempt.sent(text)
        return held

    def _send_preview(self, attempt: Attempt, preview: Preview) -> None:
        try:
            self._store.run(records.show_preview(attempt.claim, preview.name, preview.media_type, preview.image))
        except JobStoreError:
            log.warning("preview.not_sent", job=str(attempt.claim.key))

    def _beat(self, attempt: Attempt) -> None:
        try:
            answer = self._store.run(_state(attempt))
        except JobStoreError:
            # The lease may expire meanwhile; then the fence rejects later writes of this attempt.
            log.warning("heartbeat.failed", job=str(attempt.claim.key))
            return
        if answer == "cancel":
            attempt.stop(Canceled())
        elif answer == "lost":
            attempt.stop(Fenced())


def _state(attempt: Attempt) -> records.Command[str]:
    waits_for = attempt.message
    progress = attempt.shown if waits_for is None else replace(attempt.shown, message=waits_for)
    return records.heartbeat(
        attempt.claim, attempt.phase, progress, checkpoints=attempt.checkpoints, waited_s=attempt.idle_s,
        phases=attempt.phases,
    )  # fmt: skip
