"""The worker process: Celery brings hints, slots claim and run jobs, and SIGTERM gives back what is not done."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog
from celery import Celery
from celery.worker import state

from penstock.config import Settings
from penstock.log import configure
from penstock.models import Catalogue, Model, read_catalogue
from penstock.queue import HintSender, celery_queue, celery_settings, visibility_timeout_s
from penstock.signals import LOOK_EVERY_S, Signals
from penstock.storage import records
from penstock.storage.base import ObjectStore
from penstock.storage.guard import GuardedClient
from penstock.storage.objects import open_store
from penstock.storage.spool import own_folder
from penstock.workers.attempts import Heartbeat
from penstock.workers.description import describing
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import FACTORIES
from penstock.workers.engine.sources import localise
from penstock.workers.io.forks import ForkOptions
from penstock.workers.io.pool import IOPool
from penstock.workers.pipeline import Pipeline
from penstock.workers.processing import Processing
from penstock.workers.serving import Shelf
from penstock.workers.slots import END_S, Slots
from penstock.workers.stocking import CHECKS, Localise, Stocking
from penstock.workers.tasks import register

#: How often the worker looks whether it is still of use.
WATCH_EVERY_S = 1.0
#: A worker that has a free slot and did not even try to claim for so long is stuck.
SILENT_S = 60.0
#: An attempt that goes on for so long after its job was lost or timed out hangs, and so does a device that works for so
#: long on prompts of jobs that are over.
STUCK_S = 60.0
#: What a job may take to notice that the worker drains.
GIVE_BACK_S = 10.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Worker:
    """What runs in the process, apart from Celery."""

    settings: Settings
    slots: Slots
    heartbeat: Heartbeat
    engine: BatchingEngine
    #: Set when the last job has ended.
    ended: threading.Event = field(default_factory=threading.Event)

    def drain_when(self, asked: Callable[[], bool], *, stop: Callable[[], None]) -> None:
        """Wait until somebody `asked` for the end; then drain and call `stop`."""
        while not self.ended.wait(LOOK_EVERY_S):
            if asked():
                self.drain()
                stop()
                return

    def drain(self) -> None:
        """Stop claiming, give the running jobs `drain_s`, then have them given back to the queue.

        Not for signal handlers: it takes locks.
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
        # A download or a device that does not come back must not cost the job an attempt.
        log.warning("worker.stuck", released=self.heartbeat.release_left())
        os._exit(1)

    def trouble(self) -> str | None:
        """Say why this process is of no more use, if it is not: the supervisor starts a fresh one."""
        if self.engine.lost:
            return "device_lost"
        if self.engine.stuck_s() > STUCK_S:
            return "device_stuck"
        if self.heartbeat.stuck_s() > STUCK_S:
            return "attempt_stuck"
        if self.slots.silent_s() > SILENT_S:
            return "claims_nothing"
        return None

    def watch(self, *, end: Callable[[], None], kill: Callable[[], None]) -> None:
        """Call `end` when there is trouble, and `kill` if the process is still there after the time for an end."""
        while not self.ended.wait(WATCH_EVERY_S):
            if (reason := self.trouble()) is not None:
                log.error("worker.useless", reason=reason)
                after = threading.Timer(self.settings.drain_s + END_S, kill)
                after.daemon = True
                after.start()
                end()
                return


@contextmanager
def open_worker(
    settings: Settings,
    store: records.JobStore,
    *,
    catalogue: Catalogue | None = None,
    processing: Processing | None = None,
    objects: ObjectStore | None = None,
    hint: Callable[[str], object] | None = None,
) -> Iterator[Worker]:
    """Assemble a worker; leaving the block waits for its jobs, which `drain` made short.

    It serves the models of the settings, runs their processors in IO processes and keeps objects in the settings'
    store, unless it is given others; they are closed with it. `hint` tells other slots of jobs that wait.
    """
    processing = processing or io_pool(settings)
    engine = BatchingEngine(FACTORIES, memory_bytes=settings.engine_memory_bytes)
    heartbeat, shelf = Heartbeat(store), Shelf()
    with own_folder(settings.spool_dir) as spool:
        pipeline = Pipeline(
            settings=settings,
            store=store,
            objects=objects or open_store(settings.store_url, settings),
            guard=GuardedClient(settings),
            processing=processing,
            engine=engine,
            heartbeat=heartbeat,
            shelf=shelf,
            spool=spool,
        )
        slots = Slots(settings, store, shelf, pipeline.run, describing(settings, shelf, engine), hint)
        stocking = Stocking(
            shelf, processing, engine, spool / "warm-up", localise=_localiser(settings), on_news=slots.wake
        )
        stocking.begin(read_catalogue(*settings.models) if catalogue is None else catalogue)
        worker = Worker(settings, slots, heartbeat, engine)
        slots.start()
        try:
            yield worker
        finally:
            slots.drain()
            stocking.end()
            slots.join()
            worker.ended.set()
            heartbeat.close()
            processing.close()
            engine.close()


def io_pool(settings: Settings) -> IOPool:
    """Return the IO processes that the settings ask for."""
    options = ForkOptions(settings.io_memory_bytes, preload=settings.io_preload, log_level=settings.log_level)
    return IOPool(settings.slots + 1 + CHECKS, options)  # more than jobs: for a warm-up and checks beside them


def _localiser(settings: Settings) -> Localise:
    def fetched(model: Model, fetch: bool) -> Model:
        s3 = partial(open_store, settings=settings)
        return localise(model, cache=settings.model_cache_dir, s3=s3, fetch=fetch)

    return fetched


def main(settings: Settings) -> int:
    """Run a worker until SIGTERM or SIGINT; return the exit code."""
    return run(settings, records.JobStore.open(settings.redis_address))


def run(settings: Settings, store: records.JobStore, **others: Any) -> int:
    """Run a worker on a job store, which is closed at the end; `others` are those of `open_worker`."""
    configure(settings.log_level)
    app, hint = Celery("penstock"), HintSender(settings.redis_address).send
    with Signals() as signals, open_worker(settings, store, hint=hint, **others) as worker:
        app.conf.update(celery_settings(settings.redis_address, visibility_timeout_s=_visibility_timeout_s(settings)))
        register(app, worker.slots)

        threading.Thread(target=worker.drain_when, args=(signals.once,), kwargs={"stop": _stop}, daemon=True).start()
        threading.Thread(target=worker.watch, kwargs=_ends(), daemon=True).start()
        queues = ",".join(map(celery_queue, settings.queues))
        celery = app.Worker(
            pool="threads", concurrency=settings.slots, queues=queues, without_gossip=True, without_mingle=True,
            without_heartbeat=True, loglevel=settings.log_level, quiet=True,
        )  # fmt: skip
        celery.install_platform_tweaks = _no_handlers
        log.info("worker.started", worker=worker.slots.worker, slots=settings.slots, queues=settings.queues)
        celery.start()
        worker.slots.drain()
    store.close()
    return int(celery.exitcode or 0)


def _no_handlers(_worker: object) -> None:
    """Stand in for Celery's own signal handlers, which take locks: two SIGTERMs in a row may deadlock them."""


def _stop() -> None:
    """Have Celery end, as its own handler would."""
    state.should_stop = 0


def _ends() -> dict[str, Callable[[], None]]:
    return {"end": lambda: os.kill(os.getpid(), signal.SIGTERM), "kill": lambda: os.kill(os.getpid(), signal.SIGKILL)}


def _visibility_timeout_s(settings: Settings) -> int:
    models = read_catalogue(*settings.models).values()
    return visibility_timeout_s(max((model.execution_timeout_s for model in models), default=0))
