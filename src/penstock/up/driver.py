"""The driver: starts workers on this machine while jobs want more than there are. It ends none.

Any number of drivers may work on one Redis. A driver reserves its starts there (`storage/redis/lua/start_workers.lua`),
and a worker that was reserved counts for all of them until it reports, so that two drivers never start workers for the
same need. No driver has to lead. A `Standby` has imported what workers need, and becomes one at once.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psutil

from penstock.config import Settings
from penstock.errors import JobStoreError, ObjectStoreUnavailable, PenstockError
from penstock.jobs import QueueMode
from penstock.scaling import Load, ScalingBounds, wanted_workers
from penstock.storage.redis.fleet import Crew, fleet, forget_start, keep_pool, start_workers
from penstock.storage.redis.queues import QueueStats, queue_stats
from penstock.storage.redis.scripts import Runs
from penstock.up.children import WELL_AFTER_S, Child, End, Say, Supervisor, last_record, pause_s
from penstock.up.processes import KeptProcess
from penstock.up.scaling import Counts, Pool, Range
from penstock.workers.idle_exit import ExitReason

#: Seconds between two looks at the queues.
LOOK_EVERY_S = 0.2
#: Seconds after the start of a worker, or of the service, before the next standby starts: it takes the processor time
#: that the worker needs for its first job.
STANDBY_AFTER_S = 5.0
#: Reasons of workers that left by themselves.
REASONS = {
    ExitReason.IDLE.value: "it had no job for a while",
    ExitReason.MAX_JOBS.value: "these were as many as it may run",
}
#: Seconds for which a driver is known to Redis.
POOL_S = 15.0
#: Seconds after which a worker that was started and has not reported does not count any more.
START_S = 120.0
#: Seconds without a job after which the driver's workers leave, where `idle_exit_s` is not set.
IDLE_EXIT_S = 60.0


@dataclass
class Driver:
    """Starts workers up to a number; they leave by themselves."""

    settings: Settings
    store: Runs
    supervisor: Supervisor
    say: Say
    workers: Range
    #: Returns the nth worker on this machine, not started yet, from its number, its id and its idle time in seconds.
    worker: Callable[[int, str, float], KeptProcess]
    #: The process that waits to become the next worker, not started yet; None = every worker gets a new process.
    standby: KeptProcess | None = None
    #: Returns True where jobs are accepted although no worker has published a model to Redis.
    accepts: Callable[[], bool] = lambda: False
    clock: Callable[[], float] = time.monotonic
    _pool: Pool = field(init=False)
    #: Numbers of the driver's living workers.
    _numbers: set[int] = field(default_factory=set)
    _due_s: float = 0.0
    #: Time of the next report that these queues have a driver.
    _report_s: float = 0.0
    #: True once the workers that always run have reported.
    _joined: bool = False
    #: Ids of workers that were reserved in Redis and do not come.
    _unused: list[str] = field(default_factory=list)
    #: Jobs that wait, where one has waited for longer than a worker stays idle.
    _unserved: int = 0
    #: True while the standby is supervised.
    _stands_by: bool = False
    #: Time of the standby's next start.
    _standby_due_s: float = 0.0
    #: Standbys that ended right after their start, one after the other.
    _standby_failures: int = 0

    def __post_init__(self) -> None:
        """Let the workers that always run come first."""
        self._pool = Pool(self.workers.most, due_s=self.clock() + (START_S if self.workers.least else 0))
        self._standby_due_s = self.clock() + STANDBY_AFTER_S

    @property
    def idle_exit_s(self) -> float:
        """The seconds without a job after which the driver's workers leave."""
        return self.settings.idle_exit_s or IDLE_EXIT_S

    def tick(self) -> None:
        """Check the processes, and look at the queues when it is time."""
        self.supervisor.tick()
        if self.clock() >= self._due_s:
            with contextlib.suppress(JobStoreError):  # the others report it
                self._look()
            self._due_s = self.clock() + LOOK_EVERY_S
        self._keep_standby()

    def _look(self) -> None:
        queues = self.settings.queues
        if self.clock() >= self._report_s:
            self.store.run(keep_pool(queues, alive_s=POOL_S))
            self._report_s = self.clock() + POOL_S / 3
        self._forget_starts()
        stats = [self.store.run(queue_stats(queue)) for queue in queues]
        now = self.store.run(fleet(queues))
        if not self._joined and now.together.claiming >= self.workers.least:
            self._joined, self._pool = True, Pool(self.workers.most)
        counts = [self._counts(stats, now.together)]
        counts += [self._counts([found], crew) for found, crew in zip(stats, now.by_queue, strict=True)]
        if not now.models and not now.together.claiming and not self._accepts():  # the first publishes the models
            first = min(1, bounds_of(self.settings.scaling).max_workers)
            counts.append(Counts(wanted=first, waiting=1, starting=now.together.starting, here=counts[0].here))
        stale = any(_claimable(each) and each.oldest_age_s > self.idle_exit_s for each in stats)
        self._unserved = counts[0].waiting if stale else 0
        ids = [uuid.uuid4().hex for _ in range(self._pool.missing(*counts, at=self.clock()))]
        if not ids:
            return
        try:
            reserved = self.store.run(start_workers(queues, ids, after=now.starts, alive_s=START_S))
        except JobStoreError:
            self._unused += ids  # Redis may have reserved them
            raise
        for worker_id in ids if reserved else ():
            self._start(worker_id)

    def _accepts(self) -> bool:
        """Return True also while that is not known: a worker may be started for it later."""
        try:
            return self.accepts()
        except ObjectStoreUnavailable:
            return True

    def _forget_starts(self) -> None:
        while self._unused:
            self.store.run(forget_start(self.settings.queues, self._unused[-1]))
            self._unused.pop()

    def _counts(self, stats: list[QueueStats], crew: Crew) -> Counts:
        wanted = wanted_by(stats, crew, self.settings)
        here = self.workers.least + len(self._numbers)
        return Counts(wanted, sum(_claimable(each) for each in stats), crew.claiming, crew.starting, here)

    def _start(self, worker_id: str) -> None:
        number = next(n for n in range(self.workers.least + 1, self.workers.most + 1) if n not in self._numbers)
        kept = self.worker(number, worker_id, self.idle_exit_s)
        try:
            self.supervisor.start(kept, on_end=lambda end: self._ended(kept, number, worker_id, end))
        except (PenstockError, OSError) as error:
            self._unused.append(worker_id)
            self._failed(kept, f"does not start: {error}")
            return
        self._numbers.add(number)
        self.say(kept.name, f"process {kept.pid} started; log in {kept.log}")

    def _keep_standby(self) -> None:
        """Start the standby when it is due, unless as many workers live as may run here."""
        full = self.workers.least + len(self._numbers) >= self.workers.most
        if self.standby is None or self._stands_by or full or self.clock() < self._standby_due_s:
            return
        try:
            self.supervisor.start(self.standby, on_end=self._standby_ended)
        except (PenstockError, OSError) as error:
            self._standby_failed(f"does not start: {error}")
            return
        self._stands_by = True

    def _standby_ended(self, end: End) -> None:
        self._stands_by = False
        if end.code is None:  # it is a worker now
            self._standby_failures, self._standby_due_s = 0, self.clock() + STANDBY_AFTER_S
            return
        if end.lived_s > WELL_AFTER_S:
            self._standby_failures = 0
        self._standby_failed(end.why)

    def _standby_failed(self, why: str) -> None:
        assert self.standby is not None  # noqa: S101  (it was started)
        pause = pause_s(self._standby_failures)
        self._standby_failures += 1
        self._standby_due_s = self.clock() + pause
        self.say(self.standby.name, f"{why} (next start in {pause:.1f} s)")
        self.standby.note_failures(self._standby_failures, why)

    def _ended(self, kept: KeptProcess, number: int, worker_id: str, end: End) -> None:
        self._numbers.discard(number)
        self._unused.append(worker_id)  # it may have ended before it reported
        with contextlib.suppress(JobStoreError):  # the next look tries again
            self._forget_starts()
        if end.code != 0:
            if end.lived_s > WELL_AFTER_S:
                self._pool = self._pool.well()
            self._failed(kept, end.why)
            return
        kept.note_failures(0, "")
        record = last_record(kept.log, tuple(ExitReason)) or {}
        jobs = int(record.get("jobs", 1))  # one that was asked to end says nothing
        now = self.clock()
        self._pool = self._pool.left(jobs=jobs, waiting=self._unserved, at=now)
        why = REASONS.get(record.get("event", ""), "it was asked to end")
        self.say(kept.name, f"left after {jobs} {'job' if jobs == 1 else 'jobs'}: {why}")
        if self._pool.due_s > now:
            pause_s = self._pool.due_s - now
            self.say(kept.name, f"it could run no waiting job; next start in {pause_s:.0f} s, or when more wait")

    def _failed(self, kept: KeptProcess, why: str) -> None:
        now = self.clock()
        self._pool = self._pool.failed(at=now)
        self.say(kept.name, f"{why} (next start in {self._pool.due_s - now:.1f} s)")
        kept.note_failures(self._pool.failures, why)


def wanted_by(stats: list[QueueStats], crew: Crew, settings: Settings) -> int:
    """Return the workers that some queues want together, without those that drain and their jobs. Pure."""
    waiting = [each for found in stats if found.mode is not QueueMode.PAUSED for each in found.waiting]
    running = sum(found.running for found in stats) - crew.draining_jobs
    busy = max((found.busy for found in stats), default=0) - crew.draining
    load = Load(waiting, max(0, running), max(0, busy), settings.slots)
    return wanted_workers(load, bounds_of(settings.scaling))


def bounds_of(scaling: ScalingBounds) -> ScalingBounds:
    """Return the bounds of all machines: no upper one where the operator set none, as each driver has its own. Pure."""
    if "max_workers" in scaling.model_fields_set:
        return scaling
    return scaling.model_copy(update={"max_workers": sys.maxsize})


def _claimable(stats: QueueStats) -> int:
    return 0 if stats.mode is QueueMode.PAUSED else stats.queued


class Standby(Child):
    """A process that has imported what workers need and waits for one line of JSON on a pipe, which makes it a worker.

    `penstock.workers.standby` reads the line: the worker's id, the file of its log, and its environment variables.
    """

    _stdin = subprocess.PIPE

    def hand_over(self, orders: Mapping[str, Any]) -> psutil.Popen | None:
        """Give the process its orders and return it; None if there is none that lives. It belongs to the caller."""
        process = self._process
        if not isinstance(process, psutil.Popen) or not self.alive() or process.stdin is None:
            return None
        try:
            process.stdin.write(json.dumps(orders).encode() + b"\n")
            process.stdin.close()
        except OSError:  # it has just ended
            return None
        self._process = None
        self._ledger.drop(self.name)
        return process

    def start(self) -> None:
        """Start the process, in place of one that has ended."""
        self._close_pipe()
        super().start()

    def terminate(self) -> None:
        """Request the process's end, which the end of its standard input requests too."""
        super().terminate()
        self._close_pipe()

    def kill(self) -> None:
        """End the process at once."""
        super().kill()
        self._close_pipe()

    def _close_pipe(self) -> None:
        if isinstance(self._process, psutil.Popen) and self._process.stdin is not None:
            with suppress(OSError):  # the process has ended
                self._process.stdin.close()
