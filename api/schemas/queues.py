"""Schemas of queues and workers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AliasPath, BeforeValidator, Field

from penstock.api.schemas.jobs import JobView, Outgoing, Time
from penstock.jobs import QueueMode


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


def _in_state(name: str) -> AliasPath:
    return AliasPath("state", name)


class WorkerView(Outgoing):
    """A live worker, seen within about three polls. The worker reports all fields but `running`."""

    id: str
    host: str = Field(validation_alias=_in_state("host"))
    #: Id of its process on the host; null from a release that does not report it.
    pid: int | None = Field(validation_alias=_in_state("pid"))
    #: `draining`: the worker claims no more jobs.
    state: Annotated[
        Literal["serving", "draining"], BeforeValidator(lambda draining: "draining" if draining else "serving")
    ] = Field(validation_alias=_in_state("draining"))
    queues: list[str] = Field(validation_alias=_in_state("queues"))
    slots: int = Field(validation_alias=_in_state("slots"))
    #: Jobs that the worker holds.
    running: int
    #: `cpu`, or the name of the accelerator.
    device: str = Field(validation_alias=_in_state("device"))
    models: list[ServedModelView] = Field(validation_alias=_in_state("models"))
    started_at: Time = Field(validation_alias=_in_state("started_s"))


class WorkerList(Outgoing):
    """The workers, oldest first."""

    workers: list[WorkerView]


class WorkerLineView(Outgoing):
    """A log line of a worker."""

    #: Time by the worker's clock.
    at: Time = Field(validation_alias="at_s")
    level: str
    #: The line, without secrets; of a traceback its last line.
    text: str


class WorkerLineList(Outgoing):
    """The latest log lines of a worker, the oldest first."""

    lines: list[WorkerLineView]


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
