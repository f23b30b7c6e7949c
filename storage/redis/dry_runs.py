"""A dry run of a submission: the checks of the job store, and what is known of the time that the job would take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from typing import Any

from penstock.jobs import Submission
from penstock.storage.redis import records
from penstock.storage.redis.records import QueueLimits
from penstock.storage.redis.refusals import refusal
from penstock.storage.redis.scripts import Command
from penstock.storage.redis.views import pace_of, problem_text

#: Jobs of which a rate knows: further ones replace the oldest.
RATE_JOBS = 20
#: Jobs before which the widest interval is told.
FEW_JOBS = 3
#: Standard deviations from the middle of an interval to its ends: about 86 % of a bell curve.
_WIDTH = 1.5
#: Shortest and longest way from the middle of an interval to its ends, as logarithms: 1.1 and 2 times.
_NARROWEST, _WIDEST = log(1.1), log(2)
#: Variance of the logarithms of the bytes below which all jobs had about the same size.
_SAME_SIZE = 0.01


@dataclass(frozen=True, slots=True)
class DeviceRate:
    """The growth of the device seconds of a model's jobs with their bytes, both as logarithms.

    `learn_device` in `common.lua` keeps it. Jobs without media of known size have 0 for the logarithm of their bytes.
    """

    jobs: float = 0
    #: Mean logarithms of the bytes and of the seconds.
    size: float = 0
    device_s: float = 0
    #: Variances of both, and their covariance.
    size_variance: float = 0
    variance: float = 0
    covariance: float = 0

    def after(self, device_s: float, size_bytes: int = 0) -> DeviceRate:
        """Return what is known after one more job."""
        part = max(1 / RATE_JOBS, 1 / (self.jobs + 1))
        more = (log(size_bytes) if size_bytes else 0) - self.size
        longer = log(device_s) - self.device_s
        return DeviceRate(
            min(RATE_JOBS, self.jobs + 1),
            self.size + part * more,
            self.device_s + part * longer,
            (1 - part) * (self.size_variance + part * more * more),
            (1 - part) * (self.variance + part * longer * longer),
            (1 - part) * (self.covariance + part * more * longer),
        )

    def interval_s(self, size_bytes: int = 0) -> tuple[float, float]:
        """Return the least and the most device seconds to expect; the most are at most four times the least."""
        slope = 0.0
        if self.size_variance > _SAME_SIZE:
            slope = min(2.0, max(0.0, self.covariance / self.size_variance))
        middle = self.device_s + slope * ((log(size_bytes) if size_bytes else 0) - self.size)
        spread = sqrt(max(0.0, self.variance - slope * self.covariance) * (1 + 2 / max(1.0, self.jobs)))
        width = _WIDEST if self.jobs < FEW_JOBS else min(_WIDEST, max(_NARROWEST, _WIDTH * spread))
        return exp(middle - width), exp(middle + width)


@dataclass(frozen=True, slots=True)
class Forecast:
    """The findings of a dry run: the job would be accepted."""

    #: Least and most device seconds to expect; None before a job of the model has succeeded.
    device_s: tuple[float, float] | None
    #: Expected seconds until the job begins; None if unknown.
    wait_s: float | None
    #: Reason why no worker can currently run the job.
    model_problem: str | None


def dry_run(submission: Submission, limits: QueueLimits) -> Command[Forecast]:
    """Check a submission as `records.submit` does, with the same errors, and create nothing."""
    args = {**records.submit(submission, limits).args, "dry": True}
    return Command("submit", args, lambda reply: _forecast(submission, reply))


def _forecast(submission: Submission, reply: Sequence[Any]) -> Forecast:
    if reply[0] != "fits":
        raise refusal(submission, list(reply))
    _, ahead, row, problem, known = reply
    pace = pace_of(row)
    end_s = pace.wait_and_run_s(int(ahead) + 1)
    wait_s = None if end_s is None or pace.speed_s is None else max(0.0, end_s - pace.speed_s)
    rate = None if known is None else DeviceRate(*map(float, known.split()))
    device_s = None if rate is None else rate.interval_s(submission.media_bytes or 0)
    return Forecast(device_s, wait_s, problem_text(problem))
