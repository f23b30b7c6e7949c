"""Queues: their figures, their modes, and what waits or died in them. Commands, as in `records.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.jobs import Job, JobKey, QueueMode
from penstock.storage.fields import MICRO, fields, job_of, seconds
from penstock.storage.scripts import Command


@dataclass(frozen=True, slots=True)
class QueueStats:
    """What autoscaling needs to know of a queue. `eta_s` is the time to empty it; None where nothing is known."""

    queued: int
    running: int
    oldest_age_s: float
    throughput_per_s: float
    workers: int
    slots: int
    eta_s: float | None
    known: bool
    mode: QueueMode
    dead_letters: int


def queue_stats(queue: str) -> Command[QueueStats]:
    """Return a queue's depth, age and speed."""
    return Command("queue_stats", (queue,), _queue_stats)


def set_mode(queue: str, mode: QueueMode) -> Command[str]:
    """Open, pause or drain a queue."""
    return Command("queue_mode", (queue, mode.value), str)


def waiting(queue: str, tenant: str, limit: int) -> Command[tuple[JobKey, ...]]:
    """Return a tenant's jobs that wait in a queue for a worker or for another try, at most `limit`."""
    return Command("waiting", (queue, tenant, limit), lambda names: tuple(map(JobKey.parse, names)))


def dead_letters(queue: str, tenant: str, limit: int) -> Command[tuple[Job, ...]]:
    """Return a tenant's jobs whose workers died too often and that nobody retried, newest first."""
    return Command("dead", (queue, tenant, limit), lambda rows: tuple(job_of(fields(row)) for row in rows))


def bury(job: Job) -> Command[bool]:
    """Take a job off its queue's dead letters; False where it is not among them."""
    return Command("bury", (job.submission.queue, job.key.tenant, job.key.id), bool)


def seen(queue: str, worker: str, slots: int) -> Command[str]:
    """Say that a worker claimed or tried to claim."""
    return Command("seen", (queue, worker, slots), str)


def backlog() -> Command[dict[str, int]]:
    """Return how many jobs wait in each queue that has any."""
    return Command("backlog", (), fields)


def _queue_stats(reply: list[Any]) -> QueueStats:
    now_us, queued, running, oldest_us, done, workers, slots, speeds, known, mode, dead_letters = reply
    speed = [int(us) / MICRO for us in speeds[1::2]]
    mean_s = sum(speed) / len(speed) if speed else None
    oldest_s = seconds(oldest_us)
    return QueueStats(
        queued=queued,
        running=running,
        oldest_age_s=int(now_us) / MICRO - oldest_s if oldest_s is not None else 0.0,
        throughput_per_s=int(done) / 300,
        workers=workers,
        slots=slots,
        eta_s=queued * mean_s / slots if mean_s is not None and slots else None,
        known=bool(known),
        mode=QueueMode(mode),
        dead_letters=dead_letters,
    )
