"""Jobs as users see them: the record with its place in the queue, the estimated end and the reason for waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from penstock.jobs import Job, State
from penstock.storage.redis.fields import MICRO, seconds
from penstock.storage.redis.record import job_of


@dataclass(frozen=True, slots=True)
class Pace:
    """The speed of a queue, seen from one of its jobs."""

    #: Recent seconds of execution of a job of this job's model; None before the first has succeeded.
    speed_s: float | None
    #: Recent seconds of execution of a job, averaged over the jobs that wait.
    mean_s: float | None
    slots: int
    running: int
    paused: bool

    def wait_and_run_s(self, position: int) -> float | None:
        """Estimate the seconds until the job at this place ends; None without a basis for an estimate."""
        if self.speed_s is None or self.slots <= 0 or self.paused:
            return None
        # Slots that are taken come free one after the other, the first half a step from now.
        ahead = position - max(0, self.slots - self.running)
        return self.speed_s + (self.mean_s or self.speed_s) * max(0.0, ahead - 0.5) / self.slots


def pace_of(row: Sequence[Any]) -> Pace:
    """Return the pace that the scripts' `pace` replies."""
    speed_us, mean_us, slots, running, paused = row
    return Pace(seconds(speed_us), seconds(mean_us), slots, running, bool(paused))


def eta_s(job: Job, at: float, position: int | None, pace: Pace) -> float | None:
    """Estimate the seconds until a job ends: from its attempt's own progress, else from its model's recent speed."""
    if job.state is State.RUNNING and job.started_s is not None:
        elapsed, total = at - job.started_s, job.progress.total
        if total and job.own_done:
            return elapsed * max(0, total - job.own_done) / job.own_done
        # A job that takes longer than others did, and has not counted anything, may take any time.
        return pace.speed_s - elapsed if pace.speed_s is not None and elapsed < pace.speed_s else None
    if job.in_parts and job.started_s is not None and job.progress.total and job.progress.done:
        return (at - job.started_s) * max(0, job.progress.total - job.progress.done) / job.progress.done
    return None if position is None else pace.wait_and_run_s(position)


def view_of(
    flat: Sequence[str],
    now_us: str,
    places: tuple[int, int | None] | None,
    pace: Sequence[Any],
    problem: str | Sequence[str] | None,
    followers: Sequence[str] = (),
) -> Job:
    """Return the job that the scripts' `view` replies."""
    job = job_of(flat)
    position, own = (None, None) if places is None else (None if place is None else place + 1 for place in places)
    left_s = eta_s(job, int(now_us) / MICRO, position, pace_of(pace))
    return replace(
        job, queue_position=own, eta_s=left_s, model_problem=problem_text(problem), followers=tuple(followers)
    )


def problem_text(found: str | Sequence[str] | None) -> str | None:
    """Return the reply of the scripts' `problem_of` in words."""
    if found is None or isinstance(found, str):
        return found
    since = datetime.fromtimestamp(int(found[0]) // MICRO, UTC)
    return f"no worker serves it any more, since {since:%Y-%m-%dT%H:%M:%SZ}"
