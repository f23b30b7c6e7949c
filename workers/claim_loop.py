"""The claim loop: a worker's slots, each of which claims a job, runs it, and claims again until no job waits.

Hints (Celery tasks), the poll and the requeue poller start the loop. A job that fetches media from the web lends its
slot meanwhile; see `places.py`.

By the requeue poller each worker finds lost leases and waiting jobs, so that neither waits for a keeper or a hint. The
keeper has both duties too. A job whose worker died is back in its queue about a second after its lease ended while
any keeper or worker lives, and a free slot claims it within a second, also when the hint for it was lost.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Collection

import structlog

from penstock.config import Settings
from penstock.errors import JobStoreError
from penstock.jobs import Claim
from penstock.observation.listening import RecentLines
from penstock.signals import POLL_EVERY_S
from penstock.storage.redis import catalogues, queues, records, workers
from penstock.workers.idle_exit import Activity, ExitReason, exit_reason
from penstock.workers.places import Places
from penstock.workers.served_models import ServedModels

#: Polls that a worker may miss before it counts as gone.
SEEN_POLLS = 3
#: Further seconds before a worker counts as gone.
SEEN_MARGIN_S = 2.0
#: Seconds that a worker needs to end after its drain time.
END_S = 30.0
#: Seconds of one wait for a free slot: a worker that drains waits for it.
FREE_SLOT_S = 0.5
#: Seconds between two polls of the requeue poller: half of the time within which a free slot claims a waiting job.
EVERY_S = 0.5

log = structlog.get_logger(__name__)


class Slots:
    """Runs at most `settings.slots` jobs at once, for Celery tasks (hints) and for the poll without hints."""

    def __init__(
        self,
        settings: Settings,
        store: records.Runs,
        served: ServedModels,
        run: Callable[[Claim], None],
        describe: Callable[[bool], workers.WorkerState] | None = None,
        hint: Callable[[str], object] | None = None,
        *,
        store_away: Callable[[], bool] = lambda: False,
        worker: str | None = None,
        places: Places | None = None,
        recent: RecentLines | None = None,
        look: Callable[[], object] = lambda: None,
    ) -> None:
        """`run` runs a job, `describe` returns the worker's state (argument: draining), `hint` notifies a queue.

        While `store_away` returns True, nothing is claimed. `worker` is the worker's id; None = a new one. `places` are
        the worker's slots, which jobs lend while they fetch; None = nothing lends any. `recent` has the log lines that
        the worker reports with its state. `look` is called before the models are published.
        """
        self.worker = worker or uuid.uuid4().hex
        self._settings = settings
        self._store = store
        self._served = served
        self._run = run
        self._describe = describe
        self._hint = hint
        self._recent = recent
        self._look = look
        #: Log lines until the latest report that Redis keeps.
        self._reported = -1
        self._store_away = store_away
        self._places = places or Places(settings.slots, settings.fetch_slots)
        #: Held while claiming: a job on its last chance must run alone in this worker, and a worker that leaves claims
        #: nothing more.
        self._claiming = threading.Lock()
        self._running = 0
        self._claimed = 0
        self._busy_s = time.monotonic()
        #: The models that were ready at the latest look for a reason to leave.
        self._usable = served.ready()
        self._leaves: ExitReason | None = None
        self._alone = False
        self._draining = threading.Event()
        self._news = threading.Event()
        self._claimed_at = time.monotonic()
        self._polled: list[threading.Thread] = []
        self._starting = threading.Lock()
        self._poller = threading.Thread(target=self._poll_until_drained, name="poll", daemon=True)

    def start(self) -> None:
        """Start to poll for jobs without hints."""
        self._poller.start()

    def work(self, queue: str, *, patient: bool = False) -> int:
        """Run jobs of a queue until none waits or the worker drains; return their number.

        Where no slot is free, return 0 at once, or, if `patient`, wait for one until the worker drains.
        """
        if not (self._wait_for_slot() if patient else self._places.take()):
            return 0
        return self._work_in_slot(queue)

    def _work_in_slot(self, queue: str) -> int:
        """Run jobs of a queue in a slot that was taken, as `work` does, and give the slot back."""
        done, has_slot = 0, True
        try:
            while has_slot and (claim := self._claim(queue)) is not None:
                done += 1
                try:
                    self._run(claim)
                finally:
                    has_slot = self._end(claim)
            return done
        finally:
            self._claimed_at = time.monotonic()
            if has_slot:
                self._places.give_back()

    def silent_s(self) -> float:
        """Return the seconds since the last claim while a slot was free; more than a few polls mean a stuck worker."""
        if self._draining.is_set() or not self._places.take():
            return 0.0
        self._places.give_back()
        return time.monotonic() - self._claimed_at

    def notice(self, queue: str) -> None:
        """Claim waiting jobs of a queue from a thread of their own, if a slot is free."""
        with self._starting:
            if self._draining.is_set() or not self._places.take():
                return
            thread = threading.Thread(target=self._work_in_slot, args=(queue,), name=f"poll-{queue}")
            try:
                thread.start()
            except RuntimeError:  # the system has no thread left
                self._places.give_back()
                raise
            self._polled = [*(each for each in self._polled if each.is_alive()), thread]

    def wake(self) -> None:
        """Poll now: another model has become ready."""
        self._news.set()

    @property
    def draining(self) -> bool:
        """True once no more jobs are claimed."""
        return self._draining.is_set()

    def drain(self) -> None:
        """Stop claiming jobs."""
        self._draining.set()
        self._news.set()

    def leave(self) -> bool:
        """Stop claiming once there is a reason to leave (see `idle_exit.py`); return True from then on.

        Claims wait meanwhile: a job is either claimed before, and the worker is not idle, or stays in its queue. A
        claim that hangs is not waited for: the worker stays.
        """
        if not (self._settings.idle_exit_s or self._settings.max_worker_jobs):
            return False  # nobody looks, and no claim waits for that
        if not self._claiming.acquire(timeout=POLL_EVERY_S):
            return False
        try:
            if self._leaves is None and not self._draining.is_set():
                self._leaves = self._reason_to_leave(at=time.monotonic())
            if self._leaves is None:
                return False
            self.drain()
            return True
        finally:
            self._claiming.release()

    def join(self) -> None:
        """Wait for the jobs that the poll started, and send hints for those that are left in the queues."""
        self._poller.join()
        with self._starting:
            polled = self._polled
        for thread in polled:
            thread.join()
        self._hint_others()
        self._publish_state(draining=True, alive_s=0)

    def _reason_to_leave(self, *, at: float) -> ExitReason | None:
        fetching, usable = self._served.fetching(), self._served.ready()  # in this order: a fetch may end between them
        if self._served.preparing() or self._store_away() or usable != self._usable:
            self._busy_s, self._usable = at, usable
        settings, activity = self._settings, Activity(self._running, self._claimed, self._busy_s, fetching)
        why = exit_reason(
            activity, at=at, idle_exit_s=settings.idle_exit_s, max_jobs=settings.max_worker_jobs
        )  # fmt: skip
        if why is not None:
            log.info(why.value, jobs=self._claimed, idle_s=0.0 if self._running else round(at - self._busy_s, 1))
        return why

    def _hint_others(self) -> None:
        """Send a hint to each served queue with waiting jobs: this worker may have consumed the one for them."""
        if self._hint is None:
            return
        try:
            waiting = self._store.run(queues.backlog())
        except JobStoreError:
            return  # the keeper sends hints too
        for queue in set(self._settings.queues) & waiting.keys():
            self._hint(queue)

    def _wait_for_slot(self) -> bool:
        """Take a free slot; return False once the worker drains."""
        while not self._draining.is_set():
            if self._places.take(FREE_SLOT_S):
                return True
        return False

    def _claim(self, queue: str) -> Claim | None:
        """Claim a job; None if no job waits, the object store is away or the worker leaves.

        Claim none beside a job on its last chance: if that job crashes the worker, it harms no other.
        """
        with self._claiming:
            if self._claims_nothing():
                return None
            claim = self._claim_one(queue)
            self._claimed_at = time.monotonic()
            if claim is None:
                return None
            self._running += 1
            self._claimed += 1
            self._alone = claim.last_chance
            self._places.claimed(claim)
        if claim.more and self._hint is not None:
            self._hint(queue)
        return claim

    def _claims_nothing(self) -> bool:
        limit = self._settings.max_worker_jobs
        if self._alone or self._draining.is_set() or self._places.awaited or 0 < limit <= self._claimed:
            return True
        return self._store_away()

    def _claim_one(self, queue: str) -> Claim | None:
        command = records.claim(
            queue,
            slot=f"{self.worker}:{threading.get_ident()}",
            nonce=uuid.uuid4().hex,
            lease_s=self._settings.lease_s,
            max_tenant_running=self._settings.max_tenant_running,
            worker=self.worker,
            models=self._served.claimable(),
            dry=self._running == 0,
            running_caps=self._settings.running_caps,
            full=self._places.full(self._running, at=time.monotonic()),
        )
        try:
            return self._store.run(command)
        except JobStoreError:
            log.warning("claim.failed", queue=queue)
            self._busy_s = time.monotonic()  # jobs may wait
            return None

    def _end(self, claim: Claim) -> bool:
        """Count a job as ended; return True if it has a slot, False if it lent its slot and did not get it back."""
        with self._claiming:
            self._running -= 1
            has_slot = self._places.ended(claim)
            self._alone = False
            self._busy_s = time.monotonic()
        if self._draining.is_set():
            self._news.set()
        return has_slot

    def _poll_until_drained(self) -> None:
        while not self._draining.is_set():
            self._news.clear()
            self._publish_presence()
            # One thread per slot: a fresh worker must not wait for a hint for each of its slots.
            for queue in self._settings.queues * self._settings.slots:
                self.notice(queue)
            if not self._draining.is_set():
                self._news.wait(self._settings.poll_s)
        self._withdraw_presence()
        while self._running:
            self._news.clear()
            if self._running:
                self._news.wait(self._settings.poll_s)
                self._publish_state(draining=True, alive_s=self._settings.drain_s + END_S)

    def _publish_presence(self) -> None:
        try:
            alive_s = SEEN_POLLS * self._settings.poll_s + SEEN_MARGIN_S
            for queue in self._settings.queues:
                self._store.run(queues.seen(queue, self.worker, self._settings.slots, alive_s=alive_s))
            self._look()
            # Published on every poll: Redis may have been emptied.
            entries, names = self._served.entries(), self._settings.queues
            self._store.run(catalogues.publish(entries, worker=self.worker, queues=names, alive_s=alive_s))
            self._publish_state(draining=False, alive_s=alive_s)
        except JobStoreError:
            log.warning("presence.not_published")

    def _publish_state(self, *, draining: bool, alive_s: float) -> None:
        """Publish this worker's state for `penstock watch`."""
        if self._describe is None:
            return
        try:
            count, lines = (0, ()) if self._recent is None else self._recent.read()
            changed = lines if count != self._reported else None
            kept = self._store.run(workers.report(self.worker, self._describe(draining), changed, alive_s=alive_s))
            self._reported = count if kept else -1
        except JobStoreError:
            log.warning("state.not_published")

    def _withdraw_presence(self) -> None:
        try:
            for queue in self._settings.queues:
                self._store.run(queues.leave(queue, self.worker))
            self._publish_state(draining=True, alive_s=self._settings.drain_s + END_S)
        except JobStoreError:
            log.warning("presence.not_removed")  # the worker's entry expires by itself


class RequeuePoller:
    """Polls every `EVERY_S` seconds, in a thread of its own. It logs nothing while Redis does not answer."""

    def __init__(self, store: records.Runs, served: Collection[str], notice: Callable[[str], None]) -> None:
        """`notice` is called with each of the `served` queues that has waiting jobs; it must not block."""
        self._store = store
        self._served = served
        self._notice = notice
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._poll_until_end, name="requeue-poller", daemon=True)

    def start(self) -> None:
        """Start polling."""
        self._thread.start()

    def close(self) -> None:
        """Stop polling."""
        self._ended.set()
        self._thread.join()

    def poll(self) -> None:
        """Poll once: requeue jobs whose lease has ended, and call `notice` for the queues with waiting jobs."""
        swept = self._store.run(records.sweep())
        if swept.requeued:
            log.info("requeue_poller.requeued", requeued=swept.requeued)
        for queue in self._store.run(queues.backlog()):
            if queue in self._served:
                self._notice(queue)

    def _poll_until_end(self) -> None:
        while not self._ended.wait(EVERY_S):
            try:
                self.poll()
            except JobStoreError:  # claims and heartbeats log it
                continue
            except Exception:  # the next poll may succeed, and the thread must not end
                log.exception("requeue_poller.failed")
