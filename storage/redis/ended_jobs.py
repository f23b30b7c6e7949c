"""Jobs that have ended and whose spans a keeper exports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.jobs import Job, JobKey
from penstock.storage.redis.record import job_of, readable
from penstock.storage.redis.scripts import Command

#: Jobs of one call.
LIMIT = 50
#: Milliseconds after which jobs are no longer listed where no keeper asks for them.
WANTED_MS = 60_000
#: Jobs that wait for their export, at most; the oldest go first.
KEPT = 10_000


def ended_jobs(done: Sequence[JobKey]) -> Command[tuple[tuple[Job, ...], bool]]:
    """Return the next jobs that have ended, and True if there are more; `done` are exported."""

    def read(reply: Sequence[Any]) -> tuple[tuple[Job, ...], bool]:
        rows, more = reply
        return readable(rows, job_of), bool(more)

    names = [str(key) for key in done]
    return Command("spans", {"done": names, "limit": LIMIT, "wanted_ms": WANTED_MS, "kept": KEPT}, read)
