"""The number of workers that a queue wants: one pure function for the API, `/metrics` and whatever starts workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from pydantic import BaseModel, ConfigDict, Field, model_validator


class ScalingBounds(BaseModel):
    """The operator's wishes for the number of workers of each queue."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Workers of each queue, at least.
    min_workers: int = Field(default=0, ge=0)
    #: Workers of each queue, at most.
    max_workers: int = Field(default=10, ge=0)
    #: Seconds in which the waiting jobs should have been begun.
    target_wait_s: float = Field(default=30.0, gt=0)

    @model_validator(mode="after")
    def _in_order(self) -> ScalingBounds:
        if self.min_workers > self.max_workers:
            raise ValueError(f"min_workers {self.min_workers} is above max_workers {self.max_workers}")
        return self


@dataclass(frozen=True, slots=True)
class Waiting:
    """Waiting jobs of one model."""

    jobs: int
    #: Recent seconds of execution of one of these jobs; None before the first has succeeded.
    job_s: float | None


@dataclass(frozen=True, slots=True)
class Load:
    """The work of a queue."""

    #: Jobs that a worker may claim now, by model. Delayed jobs are not among them.
    waiting: Sequence[Waiting]
    #: Jobs that workers hold.
    running: int
    #: Workers that hold a job.
    busy: int
    #: Jobs that one worker runs at once.
    slots: int
    #: True where workers get no jobs of this queue.
    paused: bool = False


def wanted_workers(load: Load, bounds: ScalingBounds) -> int:
    """Return the number of workers that a queue wants: enough to begin the waiting jobs within `target_wait_s`.

    A waiting job that takes `target_wait_s` or longer wants a slot of its own, a shorter one the share of a slot that
    its seconds are of `target_wait_s`, one of unknown length a whole slot. A running job wants its slot. The number is
    never below the busy workers or `min_workers`, and never above `max_workers` unless more are busy. It is
    `min_workers` as soon as nothing waits or runs: the time for which an idle worker stays is the affair of that
    worker. A paused queue wants its busy workers only, also below `min_workers`.
    """
    if load.paused:
        return load.busy
    wanted = sum(_slots(jobs, bounds.target_wait_s) for jobs in load.waiting)
    workers = ceil((load.running + ceil(wanted)) / max(1, load.slots))
    return max(load.busy, min(max(workers, bounds.min_workers), bounds.max_workers))


def _slots(waiting: Waiting, target_wait_s: float) -> float:
    share = 1.0 if waiting.job_s is None else min(1.0, max(0.0, waiting.job_s) / target_wait_s)
    return waiting.jobs * max(share, 1e-6)  # a job that takes no time still wants a worker
