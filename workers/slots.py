"""A worker's slots: each claims a job, runs it, and claims again until nothing waits."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable

import structlog

from penstock.config import Settings
from penstock.errors import RedisUnavailable
from penstock.jobs import Claim
from penstock.storage import catalogues, queues, records, workers
from penstock.workers.serving import Shelf

#: A worker counts for so many polls, and a little more, after its last one.
SEEN_POLLS, SEEN_MARGIN_S = 3, 2.0

#: What the end of a worker takes beside its drain.
END_S = 30.0

log = structlog.get_logger(__name__)


class Slots:
    """At most `settings.slots` jobs at a time, whoever asks: a Celery task on a hint, or the poll without one."""

    def __init__(
        self,
        settings: Settings,
        store: records.Runs,
        shelf: Shelf,
        run: Callable[[Claim], None],
        describe: Callable[[bool], workers.WorkerState] | None = None,
        hint: Callable[[str], object] | None = None,
    ) -> None:
        """Take what runs a job, what describes the worker, told whether it drains, and what sends a hint."""
        self.worker = uuid.uuid4().hex
        self._settings = settings
        self._store = store
        self._shelf = shelf
        self._run = run
        self._describe = describe
        self._hint = hint
        self._free = threading.BoundedSemaphore(settings.slots)
        #: Held while claiming, so that no slot claims beside one that claims a job on its last chance.
        self._claiming = threading.Lock()
        self._running = 0
        self._alone = False
        self._draining = threading.Event()
        self._news = threading.Event()
        self._heard_at = time.monotonic()
        self._polled: list[threading.Thread] = []
        self._poller = threading.Thread(target=self._poll_until_drained, name="poll", daemon=True)

    def start(self) -> None:
        """Begin to look for work without a hint."""
        self._poller.start()

    def work(self, queue: str) -> int:
        """Run jobs of a queue until none waits or the worker drains; return how many. At once 0 if no slot is free."""
        if not self._free.acquire(blocking=False):
            return 0
        try:
            done = 0
            while not self._draining.is_set() and (claims := self._claim(queue)):
                done += self._run_all(claims)
            return done
        finally:
            self._heard_at = time.monotonic()
            self._free.release()

    def silent_s(self) -> float:
        """Return for how long a slot was free and nobody asked for work: more than a poll or two, and we are stuck."""
        if self._draining.is_set() or not self._free.acquire(blocking=False):
            return 0.0
        self._free.release()
        return time.monotonic() - self._heard_at

    def wake(self) -> None:
        """Look for work now: there is a model that was not ready before."""
        self._news.set()

    def drain(self) -> None:
        """Claim nothing more."""
        self._draining.set()
        self._news.set()

    def join(self) -> None:
        """Wait for the jobs that the poll started."""
        self._poller.join()
        for thread in self._polled:
            thread.join()
        self._say_how(draining=True, alive_s=0)

    def _run_all(self, claims: tuple[Claim, ...]) -> int:
        try:
            for claim in claims:
                self._run(claim)
        finally:
            with self._claiming:
                self._running -= len(claims)
                self._alone = False
        return len(claims)

    def _claim(self, queue: str) -> tuple[Claim, ...]:
        """Claim a job, unless one on its last chance runs here: what it takes down is itself alone."""
        with self._claiming:
            claims = () if self._alone else self._ask(queue, dry=self._running == 0)
            self._running += len(claims)
            self._alone = self._alone or any(claim.last_chance for claim in claims)
            self._heard_at = time.monotonic()
        if self._hint is not None and any(claim.more for claim in claims):
            self._hint(queue)
        return claims

    def _ask(self, queue: str, *, dry: bool) -> tuple[Claim, ...]:
        command = records.claim(
            queue,
            slot=f"{self.worker}:{threading.get_ident()}",
            nonce=uuid.uuid4().hex,
            n=1,
            lease_s=self._settings.lease_s,
            max_tenant_running=self._settings.max_tenant_running,
            worker=self.worker,
            models=self._shelf.ready(),
            dry=dry,
            running_caps=self._settings.running_caps,
        )
        try:
            return self._store.run(command)
        except RedisUnavailable:
            log.warning("claim.unanswered", queue=queue)
            return ()

    def _poll_until_drained(self) -> None:
        while not self._draining.is_set():
            self._news.clear()
            self._say_seen()
            self._polled = [thread for thread in self._polled if thread.is_alive()]
            # As many as there are slots: a fresh worker must not wait for a hint for each of them.
            for queue in self._settings.queues * self._settings.slots:
                thread = threading.Thread(target=self.work, args=(queue,), name=f"poll-{queue}")
                thread.start()
                self._polled.append(thread)
            if not self._draining.is_set():
                self._news.wait(self._settings.poll_s)
        self._say_left()

    def _say_seen(self) -> None:
        try:
            alive_s, served = SEEN_POLLS * self._settings.poll_s + SEEN_MARGIN_S, self._settings.queues
            for queue in served:
                self._store.run(queues.seen(queue, self.worker, self._settings.slots, alive_s=alive_s))
            # Again and again: Redis may have been emptied.
            entries = self._shelf.entries()
            self._store.run(catalogues.publish(entries, worker=self.worker, queues=served, alive_s=alive_s))
            self._say_how(draining=False, alive_s=alive_s)
        except RedisUnavailable:
            log.warning("seen.unanswered")

    def _say_how(self, *, draining: bool, alive_s: float) -> None:
        """Describe this worker to people; nobody waits for it."""
        if self._describe is None:
            return
        try:
            self._store.run(workers.say(self.worker, self._describe(draining), alive_s=alive_s))
        except RedisUnavailable:
            log.warning("state.unanswered")

    def _say_left(self) -> None:
        try:
            for queue in self._settings.queues:
                self._store.run(queues.leave(queue, self.worker))
            self._say_how(draining=True, alive_s=self._settings.drain_s + END_S)
        except RedisUnavailable:
            log.warning("leave.unanswered")  # they find out by themselves
