# Generated from the module in asynchronous by `make client`.
"""Queues, workers, drop rules, usage, and the job store."""

from __future__ import annotations

from datetime import date
from typing import Any

from penstock.client.answers import Job, Queue, UsageReport, Worker, WorkerLine
from penstock.client.connection import reading
from penstock.client.decoding import read
from penstock.client.options import query_of, segment
from penstock.client.synchronous.service import SyncPart


class SyncQueues(SyncPart):
    """The methods for operators."""

    def queue(self, name: str = "default") -> Queue:
        """Return a queue's depth and speed."""
        return self._service.value(Queue, "GET", _queue(name))

    def queues(self) -> list[Queue]:
        """Return all queues, by name."""
        return self._service.values(Queue, "queues", "/v1/queues")

    def workers(self) -> list[Worker]:
        """Return the live workers, the oldest first."""
        return self._service.values(Worker, "workers", "/v1/workers")

    def worker_lines(self, worker_id: str) -> list[WorkerLine]:
        """Return the latest log lines of a worker, the oldest first; needs the scope `admin`."""
        return self._service.values(WorkerLine, "lines", f"/v1/workers/{segment(worker_id)}/logs")

    def usage(
        self, *, first: date | str | None = None, last: date | str | None = None, model: str | None = None,
        tenant: str | None = None,
    ) -> UsageReport:  # fmt: skip
        """Return the usage of ended jobs by model and day, from `first` to `last` (UTC; default: the last 31 days).

        With a key of the scope `admin`, `tenant` may be another tenant, or `*` for all.
        """
        query = query_of({"from": first, "to": last, "model": model, "tenant": tenant})
        return self._service.value(UsageReport, "GET", "/v1/usage", query=query)

    def drops(self) -> dict[str, Any]:
        """Return the service's drop rules (`rules`) with their last listings, as the API tells them."""
        found: dict[str, Any] = self._service.fetch("GET", "/v1/drops")
        return found

    def pause_queue(self, name: str = "default") -> Queue:
        """Pause a queue: workers get no more of its jobs. It still accepts jobs, and running jobs go on."""
        return self._service.value(Queue, "POST", f"{_queue(name)}/pause")

    def drain_queue(self, name: str = "default") -> Queue:
        """Drain a queue: it accepts no more jobs, and its queued jobs still run."""
        return self._service.value(Queue, "POST", f"{_queue(name)}/drain")

    def resume_queue(self, name: str = "default") -> Queue:
        """End a queue's pause or drain."""
        return self._service.value(Queue, "POST", f"{_queue(name)}/resume")

    def purge_queue(self, name: str = "default") -> int:
        """Cancel all queued jobs of a queue and return their number."""
        canceled, more = 0, True
        while more:
            answer = self._service.fetch("POST", f"{_queue(name)}/purge")
            canceled += answer["canceled"]
            # Without progress the rest cannot be canceled: stop.
            more = answer["more"] and answer["canceled"] > 0
        return canceled

    def dead_letters(self, name: str = "default", *, limit: int = 50) -> list[Job]:
        """Return a queue's jobs whose workers died too often, the newest first, at most `limit` (up to 500)."""
        query = query_of({"limit": limit})
        return self._service.values(Job, "jobs", f"{_queue(name)}/dead-letters", query=query)

    def requeue_dead_letters(self, name: str = "default") -> list[Job]:
        """Retry all of a queue's dead letters and return the new jobs."""
        jobs: list[Job] = []
        more = True
        while more:
            answer = self._service.fetch("POST", f"{_queue(name)}/dead-letters/requeue")
            jobs += [read(Job, job) for job in answer["jobs"]]
            more = answer["more"] and len(answer["jobs"]) > 0
        return jobs

    def job_store(self) -> str | None:
        """Return the id of a ready service's job store; None before a keeper has set one."""
        with reading(self._service.send("GET", "/readyz")) as document:
            found = document.get("job_store")
        return None if found is None else str(found)


def _queue(name: str) -> str:
    return f"/v1/queues/{segment(name)}"
