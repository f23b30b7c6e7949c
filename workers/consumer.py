"""The consumer of hints: Celery, which lends its threads to a worker's slots.

A worker polls for its first job. Celery is imported afterwards, because that takes as long as a small job.
"""

from __future__ import annotations

from celery import Celery
from celery.worker import state

from penstock.config import Settings
from penstock.models import read_catalogue
from penstock.queue import celery_queue, celery_settings, visibility_timeout_s
from penstock.workers.slots import Slots
from penstock.workers.tasks import register


def consume(settings: Settings, slots: Slots) -> int:
    """Consume hints until `stop` is called; return Celery's exit code."""
    app = Celery("penstock")
    app.conf.update(celery_settings(settings.redis_address, visibility_timeout_s=_visibility_timeout_s(settings)))
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


def _no_handlers(_worker: object) -> None:
    """Replace Celery's own signal handlers, which take locks: two SIGTERMs in a row may deadlock them."""


def _visibility_timeout_s(settings: Settings) -> int:
    models = read_catalogue(*settings.models).values()
    return visibility_timeout_s(max((model.execution_timeout_s for model in models), default=0))
