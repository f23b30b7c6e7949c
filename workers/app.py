"""The worker process: hints arrive, slots claim and run jobs, and SIGTERM requeues unfinished jobs."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import structlog

from penstock.catalogue.environments import Environments
from penstock.catalogue.records import Catalogue, catalogue_of
from penstock.config import Settings
from penstock.intake.guard import GuardedClient
from penstock.models import Model
from penstock.observation.listening import RecentLines, hear_prints
from penstock.observation.log import configure
from penstock.signals import POLL_EVERY_S, Signals
from penstock.storage.hints import HintSender
from penstock.storage.objects.base import ObjectStore
from penstock.storage.objects.opening import open_own_store, open_store
from penstock.storage.redis import catalogues, records
from penstock.storage.redis.workers import ServedModel, WorkerState
from penstock.storage.spool import own_folder
from penstock.workers import consumer
from penstock.workers.claim_loop import END_S, RequeuePoller, Slots
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.memory import device_name
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.sources import localise
from penstock.workers.heartbeat import Heartbeat
from penstock.workers.io.forks import ForkOptions
from penstock.workers.io.pool import IOPool
from penstock.workers.loads import Loads
from penstock.workers.pipeline import Pipeline
from penstock.workers.places import Places
from penstock.workers.preparation import CHECKS, Localise, Preparation
from penstock.workers.processing import Processing
from penstock.workers.scratch import ScratchFolders
from penstock.workers.served_models import ServedModels
from penstock.workers.server_watch import ServerWatch
from penstock.workers.store_waits import StoreWaits

#: Seconds for which pauses are remembered, longer than any limit that they are counted against.
KEPT_S = 3600.0
#: Seconds between two health checks of the worker.
WATCH_EVERY_S = 1.0
#: Seconds without a claim attempt, with a free slot, after which a worker counts as stuck; its pauses do not count.
SILENT_S = 60.0
#: Seconds after which a lost or timed-out attempt counts as hung, and a device that still computes prompts of ended
#: jobs counts as stuck.
STUCK_S = 60.0
#: Seconds that the jobs have to notice that the worker drains.
GIVE_BACK_S = 10.0

#: The reasons of `Worker.trouble` as sentences.
_TROUBLES = {
    "device_lost": "its device was lost",
    "device_stuck": f"its device had computed prompts of ended jobs for {STUCK_S:g} s",
    "attempt_stuck": f"an attempt had not ended for {STUCK_S:g} s after its end was due",
    "claims_nothing": f"it had claimed nothing for {SILENT_S:g} s, with a free slot",
}

log = structlog.get_logger(__name__)


class ProcessPauses:
    """Times in which this process did not run: it was stopped, or its machine had no processor time for it.

    A thread that sends ticks every `every_s` seconds while the process runs finds them. A thread that stands still in a
    process that runs is stuck; a thread that stands still with its process is not, and its worker must not be replaced.
    All times are seconds of the monotonic clock. Not safe for several threads.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._ticked_at: float | None = None
        #: Begin and end of each pause, oldest first.
        self._pauses: deque[tuple[float, float]] = deque()

    def tick(self, at: float) -> None:
        """Note that the process runs; the time since the last tick, less `every_s`, was a pause."""
        if self._ticked_at is not None and at - self._ticked_at > self._every_s:
            self._pauses.append((self._ticked_at + self._every_s, at))
        self._ticked_at = at
        while self._pauses and self._pauses[0][1] < at - KEPT_S:
            self._pauses.popleft()

    def ran_s(self, seconds: float, *, at: float) -> float:
        """Return how much of the last seconds the process ran, that is, without its pauses."""
        begun = at - seconds
        return seconds - sum(min(at, end) - max(begun, start) for start, end in self._pauses if end > begun)


@dataclass(frozen=True, slots=True)
class Worker:
    """The parts of a worker process, apart from Celery."""

    settings: Settings
    slots: Slots
    heartbeat: Heartbeat
    engine: BatchingEngine
    #: Set when the last job has ended.
    ended: threading.Event = field(default_factory=threading.Event)
    #: Times in which this process did not run, counted by `watch`.
    pauses: ProcessPauses = field(default_factory=lambda: ProcessPauses(WATCH_EVERY_S))

    def drain_when(self, stop_requested: Callable[[], bool], *, stop: Callable[[], None]) -> None:
        """Call `stop` when the worker leaves by itself, and drain and call `stop` once `stop_requested` returns True.

        `stop` ends the consumption of hints at once, and lets the running jobs end: they may take long, and a hint that
        this worker consumed would be lost for the others.
        """
        stopped = False
        while not self.ended.wait(POLL_EVERY_S):
            if stop_requested():
                self.drain()
                stop()
                return
            if not stopped and self.slots.leave():
                stopped = True
                stop()

    def drain(self) -> None:
        """Stop claiming, let the running jobs continue for `drain_s`, then return the rest to the queue.

        Not for signal handlers: `drain` takes locks.
        """
        log.info("worker.draining", grace_s=self.settings.drain_s)
        self.slots.drain()
        threading.Thread(target=self._give_back, name="drain", daemon=True).start()

    def _give_back(self) -> None:
        if self.ended.wait(self.settings.drain_s):
            return
        self.heartbeat.drain()
        if self.ended.wait(GIVE_BACK_S):
            return
        # A hanging download or device must not cost the job an attempt.
        log.warning("worker.stuck", released=self.heartbeat.release_left())
        os._exit(1)

    def trouble(self) -> str | None:
        """Return the reason why this process must be replaced, or None. The supervisor starts a new process.

        Only time in which the process ran counts: a machine that pauses makes every thread late.
        """
        if self.engine.lost:
            return "device_lost"
        if self._lived_s(self.engine.stuck_s()) > STUCK_S:
            return "device_stuck"
        if self._lived_s(self.heartbeat.stuck_s()) > STUCK_S:
            return "attempt_stuck"
        if self._lived_s(self.slots.silent_s()) > SILENT_S:
            return "claims_nothing"
        return None

    def watch(self, *, end: Callable[[], None], kill: Callable[[], None]) -> None:
        """Call `end` at the first trouble, and `kill` if the process still runs after the drain time and `END_S`."""
        while not self.ended.wait(WATCH_EVERY_S):
            self.pauses.tick(time.monotonic())
            if (reason := self.trouble()) is not None:
                log.error("worker.unhealthy", reason=reason, detail=_TROUBLES[reason])
                after = threading.Timer(self.settings.drain_s + END_S, kill)
                after.daemon = True
                after.start()
                end()
                return

    def _lived_s(self, seconds: float) -> float:
        return self.pauses.ran_s(seconds, at=time.monotonic())


@contextmanager
def open_worker(
    settings: Settings,
    store: records.JobStore,
    *,
    catalogue: Catalogue | None = None,
    processing: Processing | None = None,
    objects: ObjectStore | None = None,
    hint: Callable[[str], object] | None = None,
    worker_id: str | None = None,
    recent: RecentLines | None = None,
) -> Iterator[Worker]:
    """Assemble a worker. Leaving the block waits for its jobs, which `drain` makes short.

    By default the worker serves the models of the settings, runs their processors in IO processes and keeps objects
    in the settings' store. It closes `processing`, also one passed in. `hint` notifies other slots of waiting jobs.
    `worker_id` is the worker's id, None for a new one. `recent` keeps the log lines that it reports.
    """
    processing = processing or io_pool(settings)
    heartbeat, served = Heartbeat(store), ServedModels()
    loads = loads_of(settings, store, served)
    engine = BatchingEngine(
        Runners.installed(), memory_bytes=settings.engine_memory_bytes, sharers=settings.device_workers, load=loads.load
    )
    objects = objects or open_own_store(settings)
    waits = StoreWaits(objects, settings.store_wait_s)
    places = Places(settings.slots, settings.fetch_slots)
    with own_folder(settings.spool_dir) as spool:
        scratch = ScratchFolders(spool, shared=settings.io_reuse == "tenant")
        pipeline = Pipeline(
            settings, store, objects, GuardedClient(settings), processing, engine, heartbeat, served, scratch, waits,
            places=places,
        )  # fmt: skip
        described = describing(settings, served, engine)
        slots = Slots(
            settings, store, served, pipeline.run, described, hint, store_away=waits.away, worker=worker_id,
            places=places, recent=recent, look=lambda: preparation.again(loads.look()),
        )  # fmt: skip
        watch = ServerWatch(served, Runners.installed().check, slots.wake)
        preparation = Preparation(
            served, processing, engine, spool / "warm-up", localise=localiser(settings), on_news=slots.wake,
            awaited=lambda: store.run(catalogues.awaited(settings.queues)), watch=watch,
            failing=loads.failing,
        )  # fmt: skip
        preparation.begin(catalogue_of(settings) if catalogue is None else catalogue)
        worker = Worker(settings, slots, heartbeat, engine)
        poller = RequeuePoller(store, settings.queues, slots.notice)
        slots.start()
        poller.start()
        try:
            yield worker
        finally:
            poller.close()
            slots.drain()
            preparation.end()
            watch.close()
            slots.join()
            worker.ended.set()
            heartbeat.close()
            processing.close()
            engine.close()


def loads_of(settings: Settings, store: records.JobStore, served: ServedModels) -> Loads:
    """Return the loads of a worker, which the workers of this machine try one at a time, and remember."""
    marks = settings.model_cache_dir / "loads"
    return Loads(Runners.installed(), store, served, settings.spool_dir / "loads", marks=marks)


def describing(settings: Settings, served: ServedModels, engine: BatchingEngine) -> Callable[[bool], WorkerState]:
    """Return a function that describes the worker's state; its argument is True while the worker drains."""
    started_s = time.time()

    def describe(draining: bool) -> WorkerState:
        loaded, batches, kept = engine.loaded(), engine.batch_sizes(), engine.kept_bytes()
        return WorkerState(
            host=socket.gethostname(),
            pid=os.getpid(),
            started_s=started_s,
            queues=settings.queues,
            slots=settings.slots,
            device=device_name(),
            draining=draining,
            device_busy=engine.busy_share(),
            models=tuple(
                ServedModel(
                    entry.name, entry.ready, entry.name in loaded, batches.get(entry.name), kept.get(entry.name)
                )
                for entry in sorted(served.entries(), key=lambda entry: entry.name)
                if entry.problem is None
            ),
        )

    return describe


def io_pool(settings: Settings) -> IOPool:
    """Return the IO processes that the settings request."""
    options = ForkOptions(
        settings.io_memory_bytes,
        file_bytes=settings.io_file_bytes,
        preload=settings.io_preload,
        log_level=settings.log_level,
        reuse=settings.io_reuse == "tenant",
        programs=settings.io_programs,
        private=private_folders(settings),
    )
    return IOPool(settings.slots + 1 + CHECKS, options)  # one per job, one for a warm-up, and one per model check


def private_folders(settings: Settings) -> list[Path]:
    """Return the folders of the service, which no processor may read."""
    store = urlsplit(settings.store_url)
    return [settings.data, settings.spool_dir, *([Path(unquote(store.path))] if store.scheme == "file" else [])]


def localiser(settings: Settings) -> Localise:
    """Return the function that gives a model a local source, fetched if its second argument is True."""

    def fetched(model: Model, fetch: bool) -> Model:
        s3 = partial(open_store, settings=settings)
        return localise(
            model, cache=settings.model_cache_dir, s3=s3, fetch=fetch, environments=Environments.of(settings)
        )

    return fetched


def main(settings: Settings, worker_id: str | None = None, *, processing: Processing | None = None) -> int:
    """Run a worker until SIGTERM or SIGINT, or until it leaves by itself; return the exit code."""
    store = records.JobStore.open(settings.redis_address)
    return run(settings, store, worker_id=worker_id, processing=processing)


def run(settings: Settings, store: records.JobStore, **others: Any) -> int:
    """Run a worker on a job store and close the store at the end; `others` are arguments of `open_worker`."""
    recent = RecentLines()
    configure(settings.log_level, recent=recent)
    hear_prints()
    log.info("worker.starting")
    hints = HintSender(settings.redis_address)
    with Signals() as signals, open_worker(settings, store, hint=hints.send, recent=recent, **others) as worker:
        threading.Thread(
            target=worker.drain_when, args=(signals.once,), kwargs={"stop": consumer.stop}, daemon=True
        ).start()
        threading.Thread(target=worker.watch, kwargs=_ends(), daemon=True).start()
        log.info("worker.started", worker=worker.slots.worker, slots=settings.slots, queues=settings.queues)
        code = consumer.consume(settings, worker.slots)
        worker.slots.drain()
    store.close()
    return code


def _ends() -> dict[str, Callable[[], None]]:
    return {"end": lambda: os.kill(os.getpid(), signal.SIGTERM), "kill": lambda: os.kill(os.getpid(), signal.SIGKILL)}
