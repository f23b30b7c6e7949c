"""Modes of queues outlive a loss of Redis."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from penstock.jobs import Claim, JobKey, QueueMode, Submission
from penstock.storage.journal import journal
from penstock.storage.journal.journal import Journal
from penstock.storage.journal.queue_modes import read_modes, store_modes
from penstock.storage.objects.local import LocalStore
from penstock.storage.redis import queues, records
from penstock.storage.redis.records import JobStore, QueueLimits
from penstock.workers.keeper.recovery import recover_if_lost

LIMITS = QueueLimits(max_queued=100, max_tenant_jobs=50, retention_s=3600, max_crashes=3, durable=True)


@pytest.fixture
def desk(store: JobStore, tmp_path: Path) -> Journal:
    """Return the two stores, which a keeper has compared."""
    desk = Journal(store, LocalStore(tmp_path / "objects"))
    recover_if_lost(store, desk.objects)
    return desk


def submit(desk: Journal, job_id: str, **given: Any) -> JobKey:
    key = JobKey("t", job_id)
    desk.run(journal.submit(Submission(key, "m", "q", {}, "f", **given), LIMITS))
    return key


def claim(desk: Journal, n: int = 1) -> list[Claim]:
    command = records.claim(
        "q", slot="s", nonce=uuid.uuid4().hex, n=n, lease_s=30, max_tenant_running=9, worker="w", models=["m"]
    )
    return list(desk.store.run(command))


def test_a_paused_queue_stays_paused_where_only_the_object_store_was_saved(desk: Journal) -> None:
    waiting = submit(desk, "waiting")
    desk.store.run(queues.set_mode("q", QueueMode.PAUSED))
    desk.store.run(queues.set_mode("other", QueueMode.DRAINING))
    assert store_modes(desk.store, desk.objects)
    assert not store_modes(desk.store, desk.objects)
    assert isinstance(desk.store, JobStore)
    desk.store.client.flushall()
    assert not store_modes(desk.store, desk.objects)  # nothing is known of an emptied Redis
    recover_if_lost(desk.store, desk.objects)
    assert claim(desk) == []
    modes = {name: desk.store.run(queues.queue_stats(name)).mode for name in ("q", "other")}
    assert modes == {"q": QueueMode.PAUSED, "other": QueueMode.DRAINING}
    desk.store.run(queues.set_mode("q", QueueMode.OPEN))
    assert store_modes(desk.store, desk.objects)
    assert [each.key for each in claim(desk)] == [waiting]
    assert read_modes(desk.objects) == {"other": "draining"}
