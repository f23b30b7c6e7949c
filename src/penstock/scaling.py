"""The number of workers that a queue wants: one pure function for the API, `/metrics` and whatever starts workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from pydantic import BaseModel, ConfigDict, Field, model_validator

#: Jobs from which the growth of a model is learned, about: older ones fade.
GROWTH_JOBS = 10
#: Sizes that differ by less than this part of their mean, on average, say nothing about growth.
_SAME_SIZE = 0.05


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
    """Waiting jobs of one model that take about as long."""

    #: Their number; not whole where only every n-th job was looked at.
    jobs: float
    #: Expected seconds of execution of one of these jobs; None before the first of the model has succeeded.
    job_s: float | None


@dataclass(frozen=True, slots=True)
class Growth:
    """The dependence of a model's jobs on the size of their media: a scene's seconds grow, a photograph's do not.

    A least-squares line through the recent jobs, kept between two extremes: all jobs take the same, or a job takes as
    many times the mean as its media are larger than the mean.
    """

    #: Jobs that succeeded; not counted beyond `GROWTH_JOBS`.
    jobs: float = 0
    #: Moving averages: bytes of a job's media, its seconds of execution, and its units (tiles, prompts).
    size: float = 0
    job_s: float = 0
    #: Variance of the bytes, and covariance of bytes and seconds.
    variance: float = 0
    covariance: float = 0
    units: float = 0

    def after(self, size: float, job_s: float, units: float) -> Growth:
        """Return what is known after one more job."""
        part = max(1 / GROWTH_JOBS, 1 / (self.jobs + 1))
        more, longer = size - self.size, job_s - self.job_s
        return Growth(
            min(GROWTH_JOBS, self.jobs + 1),
            self.size + part * more,
            self.job_s + part * longer,
            (1 - part) * (self.variance + part * more * more),
            (1 - part) * (self.covariance + part * more * longer),
            self.units + part * (max(1, units) - self.units),
        )

    @property
    def share(self) -> float:
        """The share of the mean job's seconds that grows with the bytes, 0 to 1.

        Where all jobs had about the same size, the units tell: one unit is a picture, many are the tiles of a scene.
        """
        if self.variance <= (_SAME_SIZE * self.size) ** 2:
            return 1 - 1 / max(1.0, self.units)
        if self.job_s <= 0:
            return 0.0
        return min(1.0, max(0.0, self.covariance / self.variance * self.size / self.job_s))

    def expected_s(self, size: float) -> float:
        """Return the seconds that a job with so many bytes of media takes."""
        times = size / self.size if self.size > 0 else 1.0
        return self.job_s * (1 - self.share + self.share * times)


def by_size(jobs: int, mean_s: float | None, growth: Growth | None, sizes: Sequence[int | None]) -> tuple[Waiting, ...]:
    """Return the waiting jobs of a model, with an expected time for each size of media.

    `sizes` are those of some of the jobs, which stand for all of them; a job without a size takes the mean.
    """
    if growth is None or not sizes:
        return (Waiting(jobs, mean_s),)
    expected = Counter(mean_s if size is None else growth.expected_s(size) for size in sizes)
    return tuple(Waiting(jobs * each / len(sizes), job_s) for job_s, each in expected.items())


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
