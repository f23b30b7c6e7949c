"""The export of the spans of jobs that have ended, by the active keeper: a worker never waits for a collector."""

from __future__ import annotations

from penstock.job_spans import spans_of
from penstock.jobs import JobKey
from penstock.storage.redis.ended_jobs import ended_jobs
from penstock.storage.redis.records import Runs
from penstock.telemetry import Spans


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
