"""The states that workers report, for display only. Commands, as in `records.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.formats import BESIDE, beside, inside, known
from penstock.storage.redis.fields import dump, us
from penstock.storage.redis.scripts import Command


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that a worker can run."""

    name: str
    ready: bool
    #: Its weights are on the device.
    loaded: bool
    #: Prompts in its latest batch on the device; None before the first.
    batch_size: int | None
    #: Bytes of cached encodings; None without a cache.
    encoder_cache_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerState:
    """The latest state of a worker."""

    host: str
    started_s: float
    queues: tuple[str, ...]
    slots: int
    #: `cpu`, or the name of the accelerator.
    device: str
    draining: bool
    models: tuple[ServedModel, ...]
    #: Share of about the last minute in which the device computed; None from a release that does not report it.
    device_busy: float | None = field(default=None, metadata=BESIDE)
    #: Id of its process on the host; None from a release that does not report it.
    pid: int | None = field(default=None, metadata=BESIDE)


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A living worker with the number of its running jobs."""

    id: str
    running: int
    state: WorkerState


def report(worker: str, state: WorkerState, *, alive_s: float) -> Command[str]:
    """Store the state of a worker, for `alive_s`."""
    row = asdict(state)
    about, more = dump(inside(WorkerState, row)), dump(beside(WorkerState, row))
    return Command("worker_state", {"worker": worker, "about": about, "more": more, "alive_us": us(alive_s)}, str)


def living() -> Command[tuple[LiveWorker, ...]]:
    """Return the living workers, oldest first."""
    return Command("workers", {}, _living)


def _living(rows: list[Any]) -> tuple[LiveWorker, ...]:
    found = [
        LiveWorker(worker, int(running), _state({**json.loads(about), **json.loads(more or "{}")}))
        for about, running, worker, more in rows
    ]
    return tuple(sorted(found, key=lambda live: (live.state.started_s, live.id)))


def _state(about: Mapping[str, Any]) -> WorkerState:
    models = tuple(ServedModel(**known(ServedModel, model)) for model in about["models"])
    return WorkerState(**{**known(WorkerState, about), "queues": tuple(about["queues"]), "models": models})
