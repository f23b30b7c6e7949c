"""The test build of the worker's entry point: the shipped parts, the chaos model, and failpoints at the seams."""

from __future__ import annotations

import os
import resource
import sys
import threading
from functools import partial
from signal import SIGKILL, SIGTERM

from celery import Celery, signals

from penstock.config import Settings, load_settings
from penstock.log import configure
from penstock.processors.registry import Registry, export
from penstock.queue import celery_queue, celery_settings
from penstock.storage.guard import GuardedClient
from penstock.storage.objects import open_store
from penstock.workers.app import Worker
from penstock.workers.attempts import Heartbeat
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import FACTORIES
from penstock.workers.pipeline import Pipeline, Serving
from penstock.workers.slots import Slots
from penstock.workers.spool import own_folder
from penstock.workers.tasks import register
from tests.chaos.echo import MODEL, Chaos
from tests.chaos.failpoints import FailingObjects, FailingStore, Failpoints


def main(settings: Settings) -> int:
    """Run a worker until SIGTERM; return the exit code."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # jobs that abort leave no dumps
    configure(settings.log_level)
    failpoints = Failpoints.from_environment()
    store = FailingStore(FailingStore.open(settings.redis_address).client)
    store.failpoints = failpoints
    registry = Registry().register("chaos", Chaos)
    engine, heartbeat = BatchingEngine(FACTORIES), Heartbeat(store)
    app = Celery("penstock")
    app.conf.update(celery_settings(settings.redis_address, visibility_timeout_s=6 * 3600))
    with own_folder(settings.spool_dir) as spool:
        pipeline = Pipeline(
            settings=settings,
            store=store,
            objects=FailingObjects(open_store(settings.store_url, settings), failpoints),
            guard=GuardedClient(settings),
            engine=engine,
            heartbeat=heartbeat,
            serving={MODEL.name: Serving(MODEL, registry.processor_for(MODEL))},
            spool=spool,
        )
        slots = Slots(settings, store, [export(registry, MODEL)], pipeline.run)
        worker = Worker(settings, slots, heartbeat, engine)
        slots.start()
        register(app, slots)

        def drain(**_: object) -> None:
            worker.drain()

        signals.worker_shutting_down.connect(drain)
        ended = threading.Event()
        ends = {name: partial(os.kill, os.getpid(), by) for name, by in (("end", SIGTERM), ("kill", SIGKILL))}
        threading.Thread(target=worker.watch, args=(ended,), kwargs=ends, daemon=True).start()
        celery = app.Worker(
            pool="threads", concurrency=settings.slots, queues=",".join(map(celery_queue, settings.queues)),
            without_gossip=True, without_mingle=True, without_heartbeat=True, loglevel=settings.log_level,
        )  # fmt: skip
        celery.start()
        ended.set()
        slots.drain()
        slots.join()
        heartbeat.close()
        engine.close()
    store.close()
    return int(celery.exitcode or 0)


if __name__ == "__main__":
    sys.exit(main(load_settings()))
