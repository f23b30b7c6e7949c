"""Queues: their statistics, modes, waiting jobs and dead letters. Commands, as in `records.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import fields as fields_of
from typing import Any

from penstock.formats import RUNS
from penstock.jobs import Job, JobKey, QueueMode
from penstock.scaling import Growth, Load, ScalingBounds, Waiting, by_size, wanted_workers
from penstock.storage.redis.fields import MICRO, fields, seconds, us
from penstock.storage.redis.record import job_of, readable
from penstock.storage.redis.scripts import Arg, Command, query
from penstock.storage.redis.views import pace_of

#: Shortest time in seconds over which a throughput is measured.
SHORTEST_S = 1.0
#: Waiting jobs of each queue that are searched for those of a newer release.
NEWER_LOOKS = 1000


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The statistics of a queue, for autoscaling."""

    queued: int
    running: int
    oldest_age_s: float
    #: Succeeded jobs per second: of the last 20 jobs or the last five minutes, whichever are fewer.
    throughput_per_s: float
    #: Living workers.
    workers: int
    slots: int
    #: Estimated seconds until the last waiting job ends; 0 without waiting jobs. None in a paused queue, without
    #: workers, and before a job of that model has succeeded.
    eta_s: float | None
    known: bool
    mode: QueueMode
    dead_letters: int
    #: Workers that hold a job.
    busy: int
    #: The waiting jobs by model, and by the size of their media where a model's jobs take longer for more bytes.
    waiting: tuple[Waiting, ...]

    def wanted_workers(self, bounds: ScalingBounds, *, slots: int) -> int:
        """Return the number of workers that the queue wants; `slots` of each are assumed where none lives."""
        each = round(self.slots / self.workers) if self.workers else slots
        paused = self.mode is QueueMode.PAUSED
        return wanted_workers(Load(self.waiting, self.running, self.busy, each, paused), bounds)


@dataclass(frozen=True, slots=True)
class Newer:
    """Waiting jobs that this release cannot run: their number, and the highest of their formats."""

    jobs: int
    version: int


@dataclass(frozen=True, slots=True)
class OwnJobs:
    """A tenant's jobs of one model in a queue."""

    queued: int
    running: int
    #: Workers that hold one of them, or a part of one.
    busy: int
    #: Living workers of the queue.
    workers: int


def own_jobs(queue: str, tenant: str, model: str) -> Command[OwnJobs]:
    """Return the numbers of a tenant's jobs of one model and of the queue's workers."""
    return query("own_jobs", lambda reply: OwnJobs(*reply), queue=queue, tenant=tenant, model=model)


def newer() -> Command[Newer]:
    """Return the waiting jobs that only a newer release can run, of the first `NEWER_LOOKS` of each queue."""
    return query("newer", lambda reply: Newer(*reply), version=RUNS, limit=NEWER_LOOKS)


def known_queues() -> Command[frozenset[str]]:
    """Return every queue that ever had a job or a worker."""
    return query("queues", frozenset)


def queue_stats(queue: str) -> Command[QueueStats]:
    """Return a queue's depth, age and speed."""
    return Command("queue_stats", {"queue": queue}, _queue_stats)


def set_mode(queue: str, mode: QueueMode) -> Command[str]:
    """Open, pause or drain a queue."""
    return Command("note", {"op": "queue_mode", "queue": queue, "mode": mode.value}, str)


def modes() -> Command[dict[str, str] | None]:
    """Return the modes of the queues that are not open; None before `restore_modes` in this run of the server."""
    return query("queue_modes", lambda reply: None if reply == 0 else fields(reply))


def restore_modes(stored: Mapping[str, str] | None) -> Command[bool]:
    """Give the queues their stored modes, once in a run of the server, and open all others; False after the first time.

    `stored` has the queues that are not open. With None the queues keep the modes that they have.
    """
    return Command("note", {"op": "restore_modes", "modes": stored}, bool)


def waiting(queue: str, tenant: str, limit: int, *, model: str | None = None) -> Command[tuple[JobKey, ...]]:
    """Return a tenant's jobs that wait in a queue for a worker or for another attempt, at most `limit`.

    With `model`, only that model's jobs.
    """
    args = {**_of(queue, tenant, limit), "model": model or ""}
    return Command("waiting", args, lambda names: tuple(map(JobKey.parse, names)))


def dead_letters(queue: str, tenant: str, limit: int) -> Command[tuple[Job, ...]]:
    """Return a tenant's jobs that failed as `worker_lost` and were not retried, newest first."""
    return Command("dead", _of(queue, tenant, limit), lambda rows: readable(rows, job_of))


def remove_dead_letter(job: Job) -> Command[bool]:
    """Remove a job from its queue's dead letters; False where it is not among them."""
    args = {"queue": job.submission.queue, "tenant": job.key.tenant, "id": job.key.id}
    return Command("note", {"op": "remove_dead_letter", **args}, bool)


def seen(queue: str, worker: str, slots: int, *, alive_s: float) -> Command[str]:
    """Report a worker as alive for `alive_s`, at a claim."""
    return Command("seen", {"queue": queue, "worker": worker, "slots": slots, "alive_us": us(alive_s)}, str)


def leave(queue: str, worker: str) -> Command[str]:
    """Report that a worker claims nothing more."""
    return Command("note", {"op": "leave", "queue": queue, "worker": worker}, str)


def backlog() -> Command[dict[str, int]]:
    """Return the number of waiting jobs of each queue that has any."""
    return query("backlog", fields)


def _of(queue: str, tenant: str, limit: int) -> dict[str, Arg]:
    return {"queue": queue, "tenant": tenant, "limit": limit}


def _queue_stats(reply: list[Any]) -> QueueStats:
    now_us, queued, oldest_us, done, since_us, workers, known, mode, dead_letters, pace_row, busy, rows = reply
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
        busy=busy,
        waiting=tuple(each for n in range(0, len(rows), 4) for each in _waiting(*rows[n : n + 4])),
    )


def _waiting(jobs: int, speed_us: str | None, growth: str | None, sizes: list[str]) -> tuple[Waiting, ...]:
    known = None if growth is None else Growth(*map(float, growth.split()[: len(fields_of(Growth))]))
    return by_size(jobs, seconds(speed_us), known, [int(size) if size else None for size in sizes])
