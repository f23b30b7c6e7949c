"""Idle exit: the reasons for which a worker exits by itself. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ExitReason(StrEnum):
    """A reason for which a worker claims nothing more and exits; its value is the event in the log."""

    #: It had no job for `idle_exit_s`.
    IDLE = "worker.idle"
    #: It claimed `max_worker_jobs` jobs.
    MAX_JOBS = "worker.max_jobs"


@dataclass(frozen=True, slots=True)
class Activity:
    """The work of a worker since its start."""

    #: Jobs that run now.
    running: int = 0
    #: Jobs that were claimed.
    claimed: int = 0
    #: Latest time, by the monotonic clock, at which a job ended, a model was prepared, or a store did not answer.
    busy_s: float = 0.0
    #: True while the files of models are fetched: a worker that left would drop them.
    fetching: bool = False


def exit_reason(activity: Activity, *, at: float, idle_exit_s: float, max_jobs: int) -> ExitReason | None:
    """Return why a worker leaves now, `at` by the monotonic clock; None if it stays. A limit of 0 does not apply."""
    if max_jobs and activity.claimed >= max_jobs:
        return ExitReason.MAX_JOBS
    if idle_exit_s and activity.running == 0 and not activity.fetching and at - activity.busy_s >= idle_exit_s:
        return ExitReason.IDLE
    return None
