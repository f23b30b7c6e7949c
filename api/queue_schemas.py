"""Queues and the workers that serve them, on the wire."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Literal

from pydantic import Field

from penstock.api.schemas import JobView, Outgoing, moment
from penstock.jobs import QueueMode
from penstock.storage.queues import QueueStats
from penstock.storage.workers import LiveWorker


class QueueView(Outgoing):
    """A queue's depth and speed: the signal for autoscaling."""

    name: str
    queued: int
    running: int
    oldest_age_s: float
    throughput_per_s: float = Field(description="Jobs that succeeded lately, per second.")
    workers: int = Field(description="Those that gave a sign of life within about three polls and have not left.")
    slots: int
    eta_s: float | None = Field(
        description="Until the last of the waiting jobs ends: its `eta_seconds`, and null where that is. 0 without any."
    )
    #: `paused`: no job is given to workers; `draining`: no job is accepted.
    mode: QueueMode
    #: Jobs that failed because their workers died too often, and that nobody retried.
    dead_letters: int


class ServedModelView(Outgoing):
    """A model that a worker can run."""

    name: str
    ready: bool
    #: Whether its weights are on the device.
    loaded: bool
    #: The prompts that shared its latest batch, null before the first.
    batch_size: int | None
    #: What the encodings take that it keeps of pictures it has seen, null where it keeps none.
    encoder_cache_bytes: int | None


class WorkerView(Outgoing):
    """A worker that gave a sign of life within about three polls. Said by itself, but for `running`."""

    id: str
    host: str
    #: `draining`: it claims nothing more.
    state: Literal["serving", "draining"]
    queues: list[str]
    slots: int
    #: The jobs that it holds.
    running: int
    #: `cpu`, or the name of the accelerator.
    device: str
    models: list[ServedModelView]
    started_at: datetime


class WorkerList(Outgoing):
    """The workers, the oldest first."""

    workers: list[WorkerView]


class QueueList(Outgoing):
    """The queues, by name."""

    queues: list[QueueView]


class Purged(Outgoing):
    """How many waiting jobs were canceled, and whether more wait."""

    canceled: int
    more: bool


class DeadLetters(Outgoing):
    """Jobs whose workers died too often, newest first."""

    jobs: list[JobView]


class Requeued(Outgoing):
    """The new jobs, and whether more dead letters are there."""

    jobs: list[JobView]
    more: bool


def queue_view(name: str, stats: QueueStats) -> QueueView:
    """Return the queue as the public sees it."""
    return QueueView(
        name=name,
        queued=stats.queued,
        running=stats.running,
        oldest_age_s=stats.oldest_age_s,
        throughput_per_s=stats.throughput_per_s,
        workers=stats.workers,
        slots=stats.slots,
        eta_s=stats.eta_s,
        mode=stats.mode,
        dead_letters=stats.dead_letters,
    )


def worker_view(live: LiveWorker) -> WorkerView:
    """Return the worker as operators see it."""
    state = live.state
    return WorkerView(
        id=live.id,
        host=state.host,
        state="draining" if state.draining else "serving",
        queues=list(state.queues),
        slots=state.slots,
        running=live.running,
        device=state.device,
        models=[ServedModelView(**asdict(model)) for model in state.models],
        started_at=moment(state.started_s),
    )
