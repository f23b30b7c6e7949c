"""Jobs in a bare job store, and a worker's moves, for tests of the scripts."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

from penstock.jobs import Claim, Job, JobKey, State, Submission
from penstock.storage.redis import records
from penstock.storage.redis.records import JobStore, Outcome, QueueLimits
from tests.support.claims import claim_up_to

LIMITS = QueueLimits(max_queued=100, max_tenant_jobs=50, retention_s=3600, max_crashes=3)


def submission(job_id: str = "a", **changes: Any) -> Submission:
    tenant = changes.pop("tenant", "default")
    return Submission(JobKey(tenant, job_id), **{"model": "m", "queue": "q", "input": {}, "fingerprint": "f"} | changes)


def submit(store: JobStore, job_id: str = "a", limits: QueueLimits = LIMITS, **changes: Any) -> JobKey:
    key = submission(job_id, **changes).key
    store.run(records.submit(submission(job_id, **changes), limits))
    return key


def claim(store: JobStore, n: int = 1, *, nonce: str | None = None, lease_s: float = 30, cap: int = 10) -> list[Claim]:
    return claim_up_to(
        store, n, nonce=nonce or uuid.uuid4().hex, lease_s=lease_s, max_tenant_running=cap, models=["m", "m2"]
    )


def read(store: JobStore, key: JobKey) -> Job:
    return store.run(records.read(key))


def sweep_until(store: JobStore, done: Callable[[], bool]) -> None:
    """Sweep until something that time brings about has happened."""
    deadline = time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline, "the sweep never did it"
        store.run(records.sweep())


def end_after(store: JobStore, held: Claim, took_s: float, **outcome: Any) -> None:
    """End a job well, as if it had run for so long."""
    seconds, microseconds = store.client.time()
    began_us = int((seconds - took_s) * 1e6) + microseconds
    store.client.hset(f"penstock:tenant:default:job:{held.key.id}", "started_us", began_us)
    store.run(records.complete(held, Outcome(State.SUCCEEDED, **outcome)))
