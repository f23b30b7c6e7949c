"""A worker's description of itself, for people who look: `penstock watch`."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from penstock.config import Settings
from penstock.storage.workers import ServedModel, WorkerState
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.memory import device_name
from penstock.workers.serving import Shelf


def describing(settings: Settings, shelf: Shelf, engine: BatchingEngine) -> Callable[[bool], WorkerState]:
    """Return what says how a worker is; it is told whether the worker drains."""
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
            models=tuple(
                ServedModel(
                    entry.name, entry.ready, entry.name in loaded, batches.get(entry.name), kept.get(entry.name)
                )
                for entry in sorted(shelf.entries(), key=lambda entry: entry.name)
                if entry.problem is None
            ),
        )

    return describe
