"""What workers say of themselves, for people who look. Nothing is decided by it. Commands, as in `records.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from penstock.storage.fields import dump, us
from penstock.storage.scripts import Command


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that a worker can run."""

    name: str
    ready: bool
    #: Whether its weights are on the device.
    loaded: bool
    #: The prompts that shared its latest batch on the device, None before the first.
    batch_size: int | None
    #: What the encodings take that it keeps, None where it keeps none.
    encoder_cache_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker as it described itself lately."""

    host: str
    started_s: float
    queues: tuple[str, ...]
    slots: int
    #: `cpu`, or the name of the accelerator.
    device: str
    draining: bool
    models: tuple[ServedModel, ...]


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A worker that gave a sign of life lately, and how many jobs it holds."""

    id: str
    running: int
    state: WorkerState


def say(worker: str, state: WorkerState, *, alive_s: float) -> Command[str]:
    """Store what a worker says of itself; without another word it counts for `alive_s`."""
    return Command("worker_say", (worker, dump(asdict(state)), us(alive_s)), str)


def living() -> Command[tuple[LiveWorker, ...]]:
    """Return the workers that live, the oldest first."""
    return Command("workers", (), _living)


def _living(rows: list[Any]) -> tuple[LiveWorker, ...]:
    found = [LiveWorker(worker, int(running), _state(json.loads(about))) for about, running, worker in rows]
    return tuple(sorted(found, key=lambda live: (live.state.started_s, live.id)))


def _state(about: Mapping[str, Any]) -> WorkerState:
    models = tuple(ServedModel(**model) for model in about["models"])
    return WorkerState(**{**about, "queues": tuple(about["queues"]), "models": models})
