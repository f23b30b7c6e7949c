"""A worker's slots: each claims a job, runs it, and claims again until no job waits.

A job that fetches media from the web lends its slot meanwhile; see `places.py`.
"""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import structlog

from penstock.config import Settings
from penstock.errors import JobStoreError
from penstock.jobs import Claim
from penstock.signals import POLL_EVERY_S
from penstock.storage.journal.journal import RunLast
from penstock.storage.redis import bells, catalogues, queues, records, workers
from penstock.storage.redis.records import Command
from penstock.workers.leaving import Activity, Leave, reason_to_leave
from penstock.workers.places import Places
from penstock.workers.served_models import ServedModels

#: Polls that a worker may miss before it counts as gone.
SEEN_POLLS = 3
#: Further seconds before a worker counts as gone.
SEEN_MARGIN_S = 2.0
#: Seconds that a worker needs to end after its drain time.
END_S = 30.0
#: Seconds for which a slot that has ended a job listens for the next one. In that time no hint goes through the broker.
LISTEN_S = 2.0
#: Seconds of one wait for a ring, or for a free slot: a worker that drains waits for it.
RING_S = 0.5

#: Seconds for which the end of a job waits for a claim of another slot, before it becomes a message of its own.
CLAIM_S = 0.25

#: Waits for a ring for a slot (its name, seconds); returns the queue with a job for it, or None.
Listen = Callable[[str, float], str | None]
#: Runs a job; its second argument runs the job's last command.
Run = Callable[[Claim, RunLast], None]
#: Runs two commands in one message; see `JobStore.run_both`.
RunBoth = Callable[[Command[Any], Command[Any], Callable[[Any], object]], Any]

log = structlog.get_logger(__name__)


class NextClaim:
    """A claim of a slot: its queue, its nonce, the claimed jobs, and the end of the slot's time to listen.

    The slot itself may be gone: a job that lent it and failed while it fetched may end without one.

    The jobs are None until a reply of Redis has arrived. Redis may have claimed them before: the same nonce gets the
    same jobs.
    """

    def __init__(self, queue: str, nonce: str) -> None:
        self.queue = queue
        self.nonce = nonce
        self.claims: tuple[Claim, ...] | None = None
        self.was_sent = False
        self.has_slot = True
        #: Monotonic time at which the slot's time to listen ends, never later than in Redis.
        self.listens_until_s = 0.0


class Slots:
    """Runs at most `settings.slots` jobs at once, for Celery tasks (hints) and for the poll without hints."""

    def __init__(
        self,
        settings: Settings,
        store: records.Runs,
        served: ServedModels,
        run: Run,
        describe: Callable[[bool], workers.WorkerState] | None = None,
        hint: Callable[[str], object] | None = None,
        *,
        store_away: Callable[[], bool] = lambda: False,
        worker: str | None = None,
        listen: Listen | None = None,
        run_both: RunBoth | None = None,
        on_job_ended: Callable[[], None] = lambda: None,
        places: Places | None = None,
    ) -> None:
        """`run` runs a job, `describe` returns the worker's state (argument: draining), `hint` notifies a queue.

        While `store_away` returns True, nothing is claimed. `worker` is the worker's id; None = a new one. Without
        `listen`, slots end when no job waits. With `run_both`, a slot claims its next job in one message with the end
        of a short one. `on_job_ended` is called when a job has ended, and when nothing more is
        claimed. `places` are the worker's slots, which jobs lend while they fetch; None = nothing lends any.
        """
        self.worker = worker or uuid.uuid4().hex
        #: Parts of the nonce of a claim: random for this object, and a counter.
        self._unique, self._numbers = uuid.uuid4().hex, itertools.count()
        self._settings = settings
        self._store = store
        self._served = served
        self._run = run
        self._describe = describe
        self._hint = hint
        self._store_away = store_away
        self._listen = listen
        self._run_both = run_both
        #: The slots that listen.
        self._listening: set[str] = set()
        self._on_job_ended = on_job_ended
        self._places = places or Places(settings.slots, settings.fetch_slots)
        #: Held while claiming: a job on its last chance must run alone in this worker, and a worker that leaves claims
        #: nothing more.
        self._claiming = threading.Lock()
        self._running = 0
        self._claimed = 0
        self._busy_s = time.monotonic()
        #: The models that were ready at the latest look for a reason to leave.
        self._usable = served.ready()
        self._leaves: Leave | None = None
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
        """Run jobs until none waits or the worker drains; return their number.

        The first is one of `queue`. A slot that has run a job listens for more in all queues that this worker serves.
        Where no slot is free, return 0 at once, or, if `patient`, wait for one until the worker drains.
        """
        if not (self._wait_for_slot() if patient else self._places.take()):
            return 0
        wanted: NextClaim | None = None
        try:
            done, wanted = 0, self._next_claim(queue)
            while wanted is not None and (claims := self._claim(wanted, listens=done > 0)) is not None:
                while claims:
                    wanted = self._next_claim(wanted.queue)
                    done, claims = done + len(claims), self._run_all(claims, wanted)
                if not wanted.has_slot:
                    return done
                if claims is not None:  # else the same claim again: Redis may have made it, and its reply was lost
                    rung = self._wait_for_ring(wanted.listens_until_s) if done else None
                    wanted = None if rung is None else self._next_claim(rung)
            return done
        finally:
            self._claimed_at = time.monotonic()
            if wanted is None or wanted.has_slot:
                self._places.give_back()

    def silent_s(self) -> float:
        """Return the seconds since the last claim while a slot was free; more than a few polls mean a stuck worker."""
        if self._draining.is_set() or not self._places.take():
            return 0.0
        self._places.give_back()
        return time.monotonic() - self._claimed_at

    def notice(self, queue: str) -> None:
        """Claim waiting jobs of a queue from a thread of their own, if a slot is free; else wake one that listens."""
        if self._places.take():
            self._places.give_back()
            self._work_aside(queue)
        elif (slot := next(iter(self._listening.copy()), None)) is not None:
            self._store.run(bells.ring(slot, queue))

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
        self._on_job_ended()

    def leave(self) -> bool:
        """Stop claiming once there is a reason to leave (see `leaving.py`); return True from then on.

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

    def _reason_to_leave(self, *, at: float) -> Leave | None:
        fetching, usable = self._served.fetching(), self._served.ready()  # in this order: a fetch may end between them
        if self._served.preparing() or self._store_away() or usable != self._usable:
            self._busy_s, self._usable = at, usable
        settings, activity = self._settings, Activity(self._running, self._claimed, self._busy_s, fetching)
        why = reason_to_leave(
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

    def _run_all(self, claims: tuple[Claim, ...], following: NextClaim) -> tuple[Claim, ...] | None:
        """Run jobs; return those that the slot has claimed meanwhile, None where it has not tried to."""
        try:
            for claim in claims:
                self._run(claim, partial(self._run_and_claim, following, claim))
        except BaseException:
            with self._claiming:  # this slot ends, and the leases of its next jobs expire by themselves
                self._running -= len(following.claims or ())
                for claim in following.claims or ():
                    self._places.ended(claim)
                following.claims = None
            raise
        finally:
            with self._claiming:
                self._running -= len(claims)
                with_slot = [self._places.ended(claim) for claim in claims]
                following.has_slot = all(with_slot)
                self._alone = any(claim.last_chance for claim in following.claims or ())
                self._busy_s = time.monotonic()
            self._on_job_ended()
            if self._draining.is_set():
                self._news.set()
        self._pass_on(following.queue, following.claims or ())
        return following.claims

    def _run_and_claim(self, following: NextClaim, ending: Claim, last: Command[Any]) -> Any:
        """Run the last command of a job, and claim the slot's next job in the same message.

        Only the command where another slot's claim takes long: the end of a job must not wait for that. Nor does a job
        without a slot claim another.
        """
        if self._run_both is not None and self._places.has_slot(ending) and self._claiming.acquire(timeout=CLAIM_S):
            try:
                if following.claims is None and not self._claims_nothing():
                    # The job ends before the claim: this slot runs nothing else then.
                    models = self._served.claimable()
                    running = self._running - 1
                    command = self._command(following, running=running, listens=True, models=models)
                    return self._run_both(last, command, partial(self._keep, following))
            finally:
                self._claiming.release()
        return self._store.run(last)

    def _keep(self, following: NextClaim, claims: tuple[Claim, ...]) -> None:
        following.claims = claims
        self._count(claims)

    def _wait_for_slot(self) -> bool:
        """Take a free slot; return False once the worker drains."""
        while not self._draining.is_set():
            if self._places.take(RING_S):
                return True
        return False

    def _wait_for_ring(self, until_s: float) -> str | None:
        """Wait until this slot is rung for; return the queue with a job, None from `until_s` on or when draining.

        None too once a job that has fetched its media waits for a slot.
        """
        if self._listen is None:
            return None
        slot = self._slot()
        self._listening.add(slot)
        try:
            while not (self._draining.is_set() or self._places.awaited) and time.monotonic() < until_s:
                if (queue := self._listen(slot, RING_S)) is not None:
                    return queue
            return self._store.run(bells.stop_listening(slot, self._settings.queues))
        except JobStoreError:
            return None
        finally:
            self._listening.discard(slot)

    def _next_claim(self, queue: str) -> NextClaim:
        return NextClaim(queue, f"{self._unique}-{next(self._numbers)}")

    def _slot(self) -> str:
        return f"{self.worker}:{threading.get_ident()}"

    def _claim(self, wanted: NextClaim, *, listens: bool) -> tuple[Claim, ...] | None:
        """Claim a job; without one, begin to listen. None if the object store is away or the worker leaves.

        Claim none beside a job on its last chance: if that job crashes the worker, it harms no other.
        """
        with self._claiming:
            last = self._claims_nothing()
            if last and not wanted.was_sent:
                return None
            # The jobs of a claim without a reply are this slot's: the same claim without models gets no others.
            models = [] if last else self._served.claimable()
            claims = self._claim_one(wanted, listens=listens and not last, models=models)
            if last and not claims:
                return None
            self._count(claims)
        self._pass_on(wanted.queue, claims)
        return claims

    def _count(self, claims: tuple[Claim, ...]) -> None:
        self._running += len(claims)
        self._claimed += len(claims)
        self._alone = self._alone or any(claim.last_chance for claim in claims)
        self._claimed_at = time.monotonic()
        for claim in claims:
            self._places.claimed(claim)

    def _pass_on(self, queue: str, claims: tuple[Claim, ...]) -> None:
        """Send a hint for the jobs that wait behind claimed ones, where one is needed."""
        if self._hint is not None and any(claim.more for claim in claims):
            self._hint(queue)

    def _claims_nothing(self) -> bool:
        limit = self._settings.max_worker_jobs
        if self._alone or self._draining.is_set() or self._places.awaited or 0 < limit <= self._claimed:
            return True
        return self._store_away()

    def _claim_one(self, wanted: NextClaim, *, listens: bool, models: Collection[str]) -> tuple[Claim, ...]:
        try:
            return self._store.run(self._command(wanted, running=self._running, listens=listens, models=models))
        except JobStoreError:
            log.warning("claim.failed", queue=wanted.queue)
            self._busy_s = time.monotonic()  # jobs may wait
            return ()

    def _command(
        self, wanted: NextClaim, *, running: int, listens: bool, models: Collection[str]
    ) -> Command[tuple[Claim, ...]]:
        now = time.monotonic()
        wanted.was_sent, wanted.listens_until_s = True, now + LISTEN_S
        return records.claim(
            wanted.queue,
            slot=self._slot(),
            nonce=wanted.nonce,
            n=1,
            lease_s=self._settings.lease_s,
            max_tenant_running=self._settings.max_tenant_running,
            worker=self.worker,
            models=models,
            dry=running == 0,
            running_caps=self._settings.running_caps,
            listens=self._settings.queues if self._listen is not None else (),
            listen_s=LISTEN_S if listens else 0.0,
            full=self._places.full(running, at=now),
        )

    def _poll_until_drained(self) -> None:
        while not self._draining.is_set():
            self._news.clear()
            self._publish_presence()
            # One thread per slot: a fresh worker must not wait for a hint for each of its slots.
            for queue in self._settings.queues * self._settings.slots:
                self._work_aside(queue)
            if not self._draining.is_set():
                self._news.wait(self._settings.poll_s)
        self._withdraw_presence()
        while self._running:
            self._news.clear()
            if self._running:
                self._news.wait(self._settings.poll_s)
                self._publish_state(draining=True, alive_s=self._settings.drain_s + END_S)

    def _work_aside(self, queue: str) -> None:
        thread = threading.Thread(target=self.work, args=(queue,), name=f"poll-{queue}")
        with self._starting:
            if self._draining.is_set():
                return
            thread.start()
            self._polled = [*(each for each in self._polled if each.is_alive()), thread]

    def _publish_presence(self) -> None:
        try:
            alive_s = SEEN_POLLS * self._settings.poll_s + SEEN_MARGIN_S
            for queue in self._settings.queues:
                self._store.run(queues.seen(queue, self.worker, self._settings.slots, alive_s=alive_s))
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
            self._store.run(workers.report(self.worker, self._describe(draining), alive_s=alive_s))
        except JobStoreError:
            log.warning("state.not_published")

    def _withdraw_presence(self) -> None:
        try:
            for queue in self._settings.queues:
                self._store.run(queues.leave(queue, self.worker))
            self._publish_state(draining=True, alive_s=self._settings.drain_s + END_S)
        except JobStoreError:
            log.warning("presence.not_removed")  # the worker's entry expires by itself
