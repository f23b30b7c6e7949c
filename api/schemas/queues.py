"""Schemas of queues and workers."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Literal

from pydantic import Field

from penstock.api.schemas.jobs import JobView, Outgoing, utc_time
from penstock.jobs import QueueMode
from penstock.storage.redis.queues import QueueStats
from penstock.storage.redis.workers import LiveWorker


class QueueView(Outgoing):
    """A queue's depth and throughput, the signals for autoscaling."""

    name: str
    queued: int
    running: int
    oldest_age_s: float
    throughput_per_s: float = Field(description="Recently succeeded jobs per second.")
    workers: int = Field(description="Live workers: seen within about three polls and not stopped.")
    slots: int
    eta_s: float | None = Field(
        description="Estimated seconds until the last waiting job ends (its `eta_seconds`). 0 without waiting jobs."
    )
    #: `paused`: workers get no jobs; `draining`: new jobs are rejected.
    mode: QueueMode
    #: Jobs that failed because their workers died too often, without the retried ones.
    dead_letters: int
    wanted_workers: int = Field(
        description="Workers that the queue wants now, within the bounds of `scaling`: the lower one without work."
    )


class ServedModelView(Outgoing):
    """A model that a worker serves."""

    name: str
    ready: bool
    #: True while the weights are on the device.
    loaded: bool
    #: Prompts in its latest batch; null before the first.
    batch_size: int | None
    #: Bytes of cached image encodings; null without such a cache.
    encoder_cache_bytes: int | None


class WorkerView(Outgoing):
    """A live worker, seen within about three polls. The worker reports all fields but `running`."""

    id: str
    host: str
    #: `draining`: the worker claims no more jobs.
    state: Literal["serving", "draining"]
    queues: list[str]
    slots: int
    #: Jobs that the worker holds.
    running: int
    #: `cpu`, or the name of the accelerator.
    device: str
    models: list[ServedModelView]
    started_at: datetime


class WorkerList(Outgoing):
    """The workers, oldest first."""

    workers: list[WorkerView]


class QueueList(Outgoing):
    """The queues, sorted by name."""

    queues: list[QueueView]


class PurgeView(Outgoing):
    """The number of canceled waiting jobs; `more` is true where jobs still wait."""

    canceled: int
    more: bool


class DeadLetterList(Outgoing):
    """Jobs that failed because their workers died too often, newest first."""

    jobs: list[JobView]


class RequeueView(Outgoing):
    """The new jobs; `more` is true where dead letters remain."""

    jobs: list[JobView]
    more: bool


def queue_view(name: str, stats: QueueStats, wanted_workers: int) -> QueueView:
    """Return the public view of a queue that wants so many workers."""
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
        wanted_workers=wanted_workers,
    )


def worker_view(live: LiveWorker) -> WorkerView:
    """Return the operators' view of a worker."""
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
        started_at=utc_time(state.started_s),
    )
