"""Webhooks that receivers answered are not sent again after a loss of Redis."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.config import Settings
from penstock.jobs import Claim, Delivery, JobKey, State, Submission, Webhook
from penstock.storage.journal import journal
from penstock.storage.journal.answered import MARKS, Answered
from penstock.storage.journal.endpoints import EndpointKey
from penstock.storage.journal.journal import Journal
from penstock.storage.objects.local import LocalStore
from penstock.storage.redis import deliveries
from penstock.storage.redis.records import JobStore, Outcome, QueueLimits
from penstock.workers.keeper.recovery import recover_if_lost
from penstock.workers.keeper.retention import ANSWERED_S, delete_leftovers
from tests.integration.test_deliverer import delivering, until
from tests.support.claims import claim_up_to
from tests.support.webhook_receivers import a_key, an_endpoint, receiving

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
    return claim_up_to(desk.store, n)


def test_a_loss_of_redis_sends_no_webhook_again_that_was_answered_and_stored(desk: Journal) -> None:
    store, names = desk.store, [f"j{n}" for n in range(9)]
    assert isinstance(store, JobStore)
    with receiving() as own, receiving() as ends, delivering(desk, own.pair, ends.pair) as deliverer:
        an_endpoint(desk, ends.url, EndpointKey("t", a_key(1).id))

        def run(names: Sequence[str]) -> None:
            for name in names:
                submit(desk, name, webhook=Webhook(own.url))
            for held in claim(desk, 9):
                desk.run(journal.complete(held, Outcome(State.SUCCEEDED)))
            until(store, deliverer, delivered)

        def delivered() -> bool:
            jobs = [desk.run(journal.read(JobKey("t", name))) for name in names if name in ended]
            return all(job.delivery is Delivery.DELIVERED for job in jobs)

        ended = set(names[:8])
        run(names[:8])
        deliverer.write_answered()
        ended.add("j8")
        run(names[8:])  # answered, and not stored when Redis is lost
        store.client.flushall()
        recover_if_lost(store, desk.objects)
        until(store, deliverer, delivered)
        for receiver in (own, ends):
            sent = Counter(headers["webhook-id"].split("_")[1] for headers, _ in receiver.got.queue)
            assert sent == {name: 2 if name == "j8" else 1 for name in names}
        [first] = [each for each in store.run(deliveries.deliveries(JobKey("t", "j0"))) if each.endpoint is None]
        assert first.state is Delivery.DELIVERED
        store.run(deliveries.redeliver("t", first.id))  # a user may still ask for it
        until(store, deliverer, lambda: own.came == 11)


def test_many_marks_are_few_objects_and_go_when_no_job_is_announced_again(desk: Journal, tmp_path: Path) -> None:
    marks = Answered(desk.objects)
    for n in range(2 * MARKS + 1):
        marks.add("t", f"msg_{n}")
        if n % 700 == 0:
            marks.write()
    assert marks.write() + marks.write() > 0
    kept = list(desk.objects.list("tenants/t/answered/"))
    assert len(kept) == 3
    ids = [mark for info in kept for mark in json.loads(desk.objects.get_bytes(info.key, limit_bytes=10**7))["ids"]]
    assert sorted(ids) == sorted(f"msg_{n}" for n in range(2 * MARKS + 1))
    settings = Settings(data=tmp_path, retention_s=10**9)
    delete_leftovers(desk.store, desk.objects, settings)
    assert len(list(desk.objects.list("tenants/t/answered/"))) == 3
    delete_leftovers(desk.store, desk.objects, settings, at=time.time() + ANSWERED_S + 60)
    assert list(desk.objects.list("tenants/t/answered/")) == []
