"""The consumer of hints: Celery, whose threads run a worker's slots."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog
from celery import Celery, bootsteps
from celery.worker import state

from penstock.catalogue.records import catalogue_of
from penstock.config import Settings
from penstock.errors import JobStoreError
from penstock.storage.hints import TASK, TIMEOUT_S, celery_queue, celery_settings, visibility_timeout_s
from penstock.storage.redis.identity import writable
from penstock.storage.redis.records import JobStore
from penstock.workers.claim_loop import Slots

#: Seconds between two questions to a Redis that refuses writes.
ASK_EVERY_S = 1.0

log = structlog.get_logger(__name__)


def consume(settings: Settings, slots: Slots) -> int:
    """Consume hints until `stop` is called; return Celery's exit code. While Redis refuses writes, wait."""
    app = Celery("penstock")
    app.conf.update(celery_settings(settings.redis_address, visibility_timeout_s=_visibility_timeout_s(settings)))
    app.steps["consumer"].add(_waiting(lambda: slots.draining or _accepts_writes(settings.redis_address)))
    register(app, slots)
    queues = ",".join(map(celery_queue, settings.queues))
    celery = app.Worker(
        pool="threads", concurrency=settings.slots, queues=queues, without_gossip=True, without_mingle=True,
        without_heartbeat=True, loglevel=settings.log_level, quiet=True,
    )  # fmt: skip
    celery.install_platform_tweaks = _no_handlers
    celery.start()
    return int(celery.exitcode or 0)


def stop() -> None:
    """Stop Celery, as its own signal handler would."""
    state.should_stop = 0


def register(app: Celery, slots: Slots) -> None:
    """Register the task that runs the slots' work on each hint.

    A hint that finds no free slot waits for one. If it were dropped, the next claim would send another in its place:
    that took a fifth of a busy worker's time.
    """

    @app.task(name=TASK, shared=False)  # type: ignore[untyped-decorator]  # Celery has no types
    def work(queue: str) -> int:
        return slots.work(queue, patient=True)


def _no_handlers(_worker: object) -> None:
    """Replace Celery's own signal handlers, which take locks: two SIGTERMs in a row may deadlock them."""


def _waiting(until: Callable[[], bool]) -> type[bootsteps.StartStopStep]:
    """Return the step of Celery's consumer that waits, before the consumer connects again."""

    class Waiting(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no types
        def stop(self, _consumer: object) -> None:
            while not until():
                time.sleep(ASK_EVERY_S)

    return Waiting


def _accepts_writes(address: str) -> bool:
    """Return True if Redis accepts writes, without which a consumer takes hints and fails to write them down."""
    store = JobStore.open(address, timeout_s=TIMEOUT_S, tries=1)
    try:
        store.run(writable())
    except JobStoreError as error:
        log.warning("hints.refused", detail=error.detail)
        return False
    finally:
        store.close()
    return True


def _visibility_timeout_s(settings: Settings) -> int:
    models = catalogue_of(settings).values()
    return visibility_timeout_s(max((model.execution_timeout_s for model in models), default=0))
