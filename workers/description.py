"""A worker's description of itself, shown by `penstock watch`."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from penstock.config import Settings
from penstock.storage.redis.workers import ServedModel, WorkerState
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.memory import device_name
from penstock.workers.served_models import ServedModels


def describing(settings: Settings, served: ServedModels, engine: BatchingEngine) -> Callable[[bool], WorkerState]:
    """Return a function that describes the worker's state; its argument is True while the worker drains."""
    started_s = time.time()

    def describe(draining: bool) -> WorkerState:
        loaded, batches, kept = engine.loaded(), engine.batch_sizes(), engine.kept_bytes()
        return WorkerState(
            host=socket.gethostname(),
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
