"""The heartbeat: the one thread that renews the leases of the attempts that run in this worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import structlog

from penstock.errors import Canceled, Drained, Fenced, JobStoreError
from penstock.jobs import JobKey
from penstock.storage.redis import job_logs, records, streaming
from penstock.workers.artifacts import Preview
from penstock.workers.attempts import Attempt

#: Seconds between two heartbeats of an attempt: often enough for a smooth progress bar and a quick cancel.
BEAT_S = 1.0
#: Shortest time between two heartbeats, in seconds: a short job changes its phase often.
SOON_S = 0.25

log = structlog.get_logger(__name__)


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
                self.beat(attempt)
                if not attempt.lost:
                    self.send_news(attempt)
                    self.send_lines(attempt, last=False)

    def _send_text(self, attempt: Attempt, at: int, text: str) -> bool:
        try:
            held = self._store.run(streaming.stream_text(attempt.claim, text, at=at))
        except JobStoreError:
            log.warning("text.not_sent", job=str(attempt.claim.key))
            return False
        attempt.sent(text)
        return held

    def _send_preview(self, attempt: Attempt, preview: Preview) -> None:
        try:
            self._store.run(streaming.show_preview(attempt.claim, preview.name, preview.media_type, preview.image))
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
