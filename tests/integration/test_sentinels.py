"""A primary that Sentinels watch: clients find the promoted replica, and the API waits for its comparison."""

from __future__ import annotations

from pathlib import Path

import pytest
from celery import Celery

from penstock.errors import RedisUnavailable
from penstock.jobs import JobKey, State, Submission
from penstock.storage.checks import inspect_redis, inspect_redis_access
from penstock.storage.hints import HintSender, celery_queue, celery_settings
from penstock.storage.journal import journal
from penstock.storage.journal.journal import Journal
from penstock.storage.objects.local import LocalStore
from penstock.storage.redis import records
from penstock.storage.redis.records import AsyncJobStore, JobStore, QueueLimits
from penstock.workers.keeper.recovery import recover_if_lost
from tests.support.sentinels import watched_pair

LIMITS = QueueLimits(max_queued=100, max_tenant_jobs=50, retention_s=3600, max_crashes=3, durable=True)


async def test_the_promoted_replica_is_found_and_answers_the_api_once_it_was_compared(tmp_path: Path) -> None:
    with watched_pair(tmp_path / "servers") as servers:
        address = servers.address
        assert all(found.ok for found in inspect_redis(address))
        assert not inspect_redis_access(address).ok
        store, objects = JobStore.open(address), LocalStore(tmp_path / "objects")
        api, hints = AsyncJobStore.open(address), HintSender(address)
        jobs = Journal(store, objects)
        try:
            recover_if_lost(store, objects)
            key = JobKey("default", "job")
            jobs.run(journal.submit(Submission(key, model="m", queue="q", input={}, fingerprint="x"), LIMITS))
            assert (await api.run(records.read(key))).state == State.QUEUED
            assert hints.send("q")

            servers.kill()
            servers.await_promotion()

            assert store.run(records.read(key)).state == State.QUEUED
            with pytest.raises(RedisUnavailable):  # the connection to the dead server
                await api.run(records.read(key))
            with pytest.raises(RedisUnavailable, match="a keeper compares its jobs"):
                await api.run(records.read(key))
            recover_if_lost(store, objects)
            assert (await api.run(records.read(key))).state == State.QUEUED
            assert hints.send("q2")
            app = Celery("consumer", set_as_current=False)
            app.conf.update(celery_settings(address, visibility_timeout_s=3600))
            with app.connection_for_read() as broker, broker.SimpleQueue(celery_queue("q2")) as queue:
                assert queue.get(timeout=5).payload[0] == ["q2"]
        finally:
            await api.close()
            store.close()
