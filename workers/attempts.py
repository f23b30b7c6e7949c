"""An attempt: one claimed job while it runs, with its progress, waits, metrics and counted resources."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from penstock.errors import Fenced, Interruption
from penstock.jobs import Artifact, Claim, Phase, Progress, Usage
from penstock.processors.base import Output, Prompt
from penstock.storage.redis import records
from penstock.workers.artifacts import Preview
from penstock.workers.job_log import AttemptLog

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
#: Inputs that are an image, tile or frame: the cost of their prompts is in pixels.
_IMAGES = ("pixels", "image")
_TOKENS_IN, _TOKENS_OUT = "input_ids", "token_ids"


@dataclass(frozen=True, slots=True)
class Counted:
    """The tokens and pixels of an attempt so far; None for a unit that the attempt has not used."""

    tokens_in: int | None = None
    tokens_out: int | None = None
    pixels: int | None = None

    def prompt(self, prompt: Prompt) -> Counted:
        """Return the counts after a further prompt."""
        found = self
        if _TOKENS_IN in prompt.data:
            found = replace(found, tokens_in=(self.tokens_in or 0) + len(prompt.data[_TOKENS_IN]))
        if any(name in prompt.data for name in _IMAGES):
            found = replace(found, pixels=(self.pixels or 0) + prompt.cost)
        return found

    def output(self, output: Output) -> Counted:
        """Return the counts after a further final output."""
        if _TOKENS_OUT not in output.data:
            return self
        return replace(self, tokens_out=(self.tokens_out or 0) + len(output.data[_TOKENS_OUT]))

    def result(self, data: Mapping[str, Any] | None) -> Counted:
        """Return the counts of a finished job: those that its result states win, because its text may end earlier."""
        stated = (data or {}).get("usage")
        if not isinstance(stated, Mapping):
            return self
        tokens_in, tokens_out = stated.get("prompt_tokens"), stated.get("completion_tokens")
        return replace(
            self,
            tokens_in=tokens_in if isinstance(tokens_in, int) else self.tokens_in,
            tokens_out=tokens_out if isinstance(tokens_out, int) else self.tokens_out,
        )


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

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Add the duration of the block, in seconds, to a metric."""
        begun_s = time.monotonic()
        try:
            yield
        finally:
            self.add_seconds(what, time.monotonic() - begun_s)

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
