"""The worker process: Celery brings hints, slots claim and run jobs, and SIGTERM gives back what is not done."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import structlog
from celery import Celery, signals

from penstock.config import Settings
from penstock.log import configure
from penstock.models import CatalogueEntry, read_catalogue
from penstock.processors.registry import Registry, export
from penstock.queue import celery_queue, celery_settings
from penstock.storage import records
from penstock.storage.guard import GuardedClient
from penstock.storage.objects import open_store
from penstock.workers.attempts import Heartbeat
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import FACTORIES
from penstock.workers.pipeline import Pipeline, Serving
from penstock.workers.slots import Slots
from penstock.workers.spool import own_folder
from penstock.workers.tasks import register

#: How often the worker looks whether it is still of use.
WATCH_EVERY_S = 1.0
#: A worker that has a free slot and did not even try to claim for so long is stuck.
SILENT_S = 60.0
#: An attempt that goes on for so long after its job was lost or timed out hangs in its device.
STUCK_S = 60.0
#: What a job may take to notice that the worker drains.
GIVE_BACK_S = 10.0
#: How long an orderly end may take, beside the drain.
END_S = 30.0

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

    def drain(self) -> None:
        """Stop claiming, give the running jobs `drain_s`, then have them given back to the queue."""
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


def serve_catalogue(settings: Settings, registry: Registry) -> tuple[dict[str, Serving], list[CatalogueEntry]]:
    """Return the models that this installation can run, and what the API is told of all of them."""
    serving: dict[str, Serving] = {}
    entries: list[CatalogueEntry] = []
    for model in read_catalogue(*settings.models).values():
        entry = export(registry, model)
        entries.append(entry)
        if entry.problem is None:
            serving[model.name] = Serving(model, registry.processor_for(model))
        else:
            log.warning("model.unavailable", model=model.name, problem=entry.problem)
    return serving, entries


@contextmanager
def open_worker(settings: Settings, store: records.JobStore) -> Iterator[Worker]:
    """Assemble a worker; leaving the block waits for its jobs, which `drain` made short."""
    serving, entries = serve_catalogue(settings, Registry.installed())
    engine = BatchingEngine(FACTORIES)
    heartbeat = Heartbeat(store)
    with own_folder(settings.spool_dir) as spool:
        pipeline = Pipeline(
            settings=settings,
            store=store,
            objects=open_store(settings.store_url, settings),
            guard=GuardedClient(settings),
            engine=engine,
            heartbeat=heartbeat,
            serving=serving,
            spool=spool,
        )
        slots = Slots(settings, store, entries, pipeline.run)
        worker = Worker(settings, slots, heartbeat, engine)
        slots.start()
        try:
            yield worker
        finally:
            slots.join()
            worker.ended.set()
            heartbeat.close()
            engine.close()


def main(settings: Settings) -> int:
    """Run a worker until SIGTERM or SIGINT; return the exit code."""
    configure(settings.log_level)
    store = records.JobStore.open(settings.redis_address)
    app = Celery("penstock")
    app.conf.update(celery_settings(settings.redis_address, visibility_timeout_s=_visibility_timeout_s(settings)))
    with open_worker(settings, store) as worker:
        register(app, worker.slots)

        def drain(**_: object) -> None:
            worker.drain()

        signals.worker_shutting_down.connect(drain)
        threading.Thread(target=worker.watch, kwargs=_ends(), daemon=True).start()
        queues = ",".join(map(celery_queue, settings.queues))
        celery = app.Worker(
            pool="threads", concurrency=settings.slots, queues=queues, without_gossip=True, without_mingle=True,
            without_heartbeat=True, loglevel=settings.log_level, quiet=True,
        )  # fmt: skip
        log.info("worker.started", worker=worker.slots.worker, slots=settings.slots, queues=settings.queues)
        celery.start()
        worker.slots.drain()
    store.close()
    return int(celery.exitcode or 0)


def _ends() -> dict[str, Callable[[], None]]:
    return {"end": lambda: os.kill(os.getpid(), signal.SIGTERM), "kill": lambda: os.kill(os.getpid(), signal.SIGKILL)}


def _visibility_timeout_s(settings: Settings) -> int:
    """A hint holds its slot as long as jobs wait, so it outlives the longest of them several times over."""
    longest = max(model.execution_timeout_s for model in read_catalogue(*settings.models).values())
    return max(6 * 3600, 4 * longest)
