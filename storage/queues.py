"""Queues: their figures, their modes, and what waits or died in them. Commands, as in `records.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.jobs import Job, JobKey, QueueMode
from penstock.storage.fields import MICRO, fields, job_of, pace_of, seconds, us
from penstock.storage.scripts import Command

#: A throughput is told of no shorter time: the first job after a pause is not yet a speed.
SHORTEST_S = 1.0


@dataclass(frozen=True, slots=True)
class QueueStats:
    """What autoscaling needs to know of a queue."""

    queued: int
    running: int
    oldest_age_s: float
    #: Jobs that succeeded lately, per second: of the last 20 or of the last five minutes, whichever are fewer.
    throughput_per_s: float
    #: Those that gave a sign of life lately and have not left.
    workers: int
    slots: int
    #: Until the last of the waiting jobs ends, as that job's own `eta_s` says; 0 where none waits. None where the queue
    #: is paused or has no workers, or no job of that model has succeeded yet.
    eta_s: float | None
    known: bool
    mode: QueueMode
    dead_letters: int


def known_queues() -> Command[frozenset[str]]:
    """Return every queue that ever had a job or a worker."""
    return Command("queues", (), frozenset)


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


def seen(queue: str, worker: str, slots: int, *, alive_s: float) -> Command[str]:
    """Say that a worker claimed or tried to claim; without another word it counts for `alive_s`."""
    return Command("seen", (queue, worker, slots, us(alive_s)), str)


def leave(queue: str, worker: str) -> Command[str]:
    """Say that a worker claims nothing more."""
    return Command("leave", (queue, worker), str)


def backlog() -> Command[dict[str, int]]:
    """Return how many jobs wait in each queue that has any."""
    return Command("backlog", (), fields)


def _queue_stats(reply: list[Any]) -> QueueStats:
    now_us, queued, oldest_us, done, since_us, workers, known, mode, dead_letters, pace_row = reply
    now_s, oldest_s, since_s, pace = int(now_us) / MICRO, seconds(oldest_us), seconds(since_us), pace_of(pace_row)
    return QueueStats(
        queued=queued,
        running=pace.running,
        oldest_age_s=now_s - oldest_s if oldest_s is not None else 0.0,
        throughput_per_s=int(done) / max(SHORTEST_S, now_s - since_s) if since_s is not None else 0.0,
        workers=workers,
        slots=pace.slots,
        eta_s=pace.wait_and_run_s(queued) if queued else 0.0,
        known=bool(known),
        mode=QueueMode(mode),
        dead_letters=dead_letters,
    )
