"""The export of the spans of jobs that have ended, by the active keeper: a worker never waits for a collector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.jobs import Job, JobKey
from penstock.observation.job_spans import spans_of
from penstock.observation.telemetry import Spans
from penstock.storage.redis.record import job_of, readable
from penstock.storage.redis.scripts import Command, Runs

#: Jobs of one call.
LIMIT = 50
#: Milliseconds after which jobs are no longer listed where no keeper asks for them.
WANTED_MS = 60_000
#: Jobs that wait for their export, at most; the oldest go first.
KEPT = 10_000


class JobTraces:
    """Exports the spans of each job once, or again with the same ids where a keeper died in between."""

    def __init__(self, store: Runs, spans: Spans) -> None:
        self._store = store
        self._spans = spans
        self._done: tuple[JobKey, ...] = ()

    def step(self) -> bool:
        """Export the spans of some jobs; return True if there are more."""
        jobs, more = self._store.run(ended_jobs(self._done))
        for job in jobs:
            for span in spans_of(job):
                self._spans.send(span)
        self._done = tuple(job.key for job in jobs)
        return more or bool(jobs)


def ended_jobs(done: Sequence[JobKey]) -> Command[tuple[tuple[Job, ...], bool]]:
    """Return the next jobs that have ended, and True if there are more; `done` are exported."""

    def read(reply: Sequence[Any]) -> tuple[tuple[Job, ...], bool]:
        rows, more = reply
        return readable(rows, job_of), bool(more)

    names = [str(key) for key in done]
    return Command("spans", {"done": names, "limit": LIMIT, "wanted_ms": WANTED_MS, "kept": KEPT}, read)
