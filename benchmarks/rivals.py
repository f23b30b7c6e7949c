"""The two workers that `benchmarks.job_queue` compares, each in its own process.

`python -m benchmarks.rivals celery URL` runs no-op tasks; `... penstock URL N STORE` runs no-op jobs, claiming up to N
at a time; STORE is the URL of the object store for durable jobs; `PENSTOCK_S3__*` configure the access. Both
workers have two threads and Penstock's Celery settings.
"""

from __future__ import annotations

import cProfile
import os
import pstats
import sys
import threading
import uuid

from celery import Celery, signals

from penstock.config import load_settings
from penstock.jobs import Claim, State
from penstock.queue import TASK, celery_queue, celery_settings
from penstock.storage.journal import journal
from penstock.storage.journal.journal import Journal
from penstock.storage.objects.base import ObjectStore
from penstock.storage.objects.opening import open_store
from penstock.storage.redis import records
from penstock.storage.redis.records import JobStore, Outcome

THREADS = 2
QUEUE = "bench"
MODEL = "noop"
DONE = Outcome(State.SUCCEEDED, provenance='{"environment":"abcdefghijklmnop"}')


def celery_app(url: str) -> Celery:
    """Return a Celery app with Penstock's settings and a task that does nothing."""
    app = Celery("bench")
    app.conf.update(celery_settings(url, visibility_timeout_s=3600))

    @app.task(name="noop")  # type: ignore[untyped-decorator]  # Celery has no types
    def noop() -> None:
        return None

    return app


def consume(app: Celery, queue: str) -> None:
    """Run a Celery worker until SIGTERM."""
    worker = app.Worker(
        pool="threads", concurrency=THREADS, queues=queue, without_gossip=True, without_mingle=True,
        without_heartbeat=True, loglevel="warning",
    )  # fmt: skip
    worker.start()


class NoopSlots:
    """Slots that claim `n` jobs at a time and complete each immediately."""

    def __init__(self, url: str, n: int, objects: ObjectStore) -> None:
        self._store = JobStore.open(url)
        self._journal = Journal(self._store, objects)
        self._n = n
        self._worker = uuid.uuid4().hex
        self._ended = threading.Event()

    def work(self) -> int:
        """Run jobs until the queue is empty."""
        done = 0
        while not self._ended.is_set() and (claims := self._claim()):
            for claim in claims:
                self._journal.run(journal.complete(claim, DONE))
                done += 1
        return done

    def end(self) -> None:
        """Stop claiming."""
        self._ended.set()

    def _claim(self) -> tuple[Claim, ...]:
        return self._store.run(
            records.claim(
                QUEUE, slot=f"{self._worker}:{threading.get_ident()}", nonce=uuid.uuid4().hex, n=self._n, lease_s=30,
                max_tenant_running=1000, worker=self._worker, models=[MODEL],
            )
        )  # fmt: skip


def penstock_worker(url: str, n: int, store_url: str) -> None:
    """Claim jobs on hints until SIGTERM; with `BENCH_PROFILE`, write a profile of one slot to this file."""
    slots = NoopSlots(url, n, open_store(store_url, load_settings()))
    app = celery_app(url)
    profile = os.environ.get("BENCH_PROFILE")

    @app.task(name=TASK)  # type: ignore[untyped-decorator]
    def work(queue: str) -> int:  # noqa: ARG001
        if profile is None:
            return slots.work()
        with cProfile.Profile() as profiler:
            done = slots.work()
        if done > 100:
            with open(profile, "w") as file:  # noqa: PTH123
                pstats.Stats(profiler, stream=file).sort_stats("tottime").print_stats(18)
        return done

    def end(**_: object) -> None:
        slots.end()

    signals.worker_shutting_down.connect(end)
    consume(app, celery_queue(QUEUE))


if __name__ == "__main__":
    role, address, *rest = sys.argv[1:]
    if role == "celery":
        consume(celery_app(address), "noop")
    else:
        penstock_worker(address, int(rest[0]), rest[1])
