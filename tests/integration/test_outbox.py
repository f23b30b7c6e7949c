"""Webhook deliveries in a real Valkey: written with the event, leased for each try, settled once."""

from __future__ import annotations

import pytest

from penstock.errors import UnknownDelivery, UnknownJob
from penstock.jobs import Delivery, State, Webhook
from penstock.storage.redis import deliveries, records
from penstock.storage.redis.records import JobStore, Outcome
from tests.support.bare_store import claim, read, submit


def due(store: JobStore, n: int = 10) -> tuple[deliveries.Task, ...]:
    return store.run(deliveries.due(n, 60)).tasks


def leased(store: JobStore) -> deliveries.DeliveryRecord:
    """Return the only delivery that is due, leased."""
    [task] = due(store)
    return task.delivery


def test_the_end_of_a_job_puts_one_row_into_the_outbox(store: JobStore) -> None:
    key = submit(store, webhook=Webhook("http://h/"))
    store.run(records.complete(claim(store)[0], Outcome(State.SUCCEEDED)))
    [task] = due(store, 10)
    assert task.job is not None
    assert (task.delivery.event, task.delivery.url, task.delivery.tries) == ("job.succeeded", "http://h/", 1)
    assert task.job.key == key
    assert read(store, key).delivery is Delivery.PENDING
    assert due(store, 10) == ()


def test_a_try_is_settled_once_and_never_changes_the_job(store: JobStore) -> None:
    key = submit(store, webhook=Webhook("http://h/"))
    store.run(records.cancel(key))
    row = leased(store)
    note = deliveries.Attempt(1, 1.0, 500, "HTTP 500")
    assert store.run(deliveries.fix_body(row, "body")) == "body"
    assert store.run(deliveries.settle(row, Delivery.PENDING, note, delay_s=0)) == "ok"
    again = leased(store)
    assert store.run(deliveries.settle(row, Delivery.FAILED, note)) == "stale"
    assert again.body == store.run(deliveries.fix_body(again, "other")) == "body"
    assert store.run(deliveries.settle(again, Delivery.DELIVERED, note)) == "ok"
    [record] = store.run(deliveries.deliveries(key))
    assert (record.tries, record.state, record.body, len(record.log)) == (2, Delivery.DELIVERED, "body", 2)
    assert read(store, key).delivery is Delivery.DELIVERED
    assert read(store, key).state is State.CANCELED


def test_a_settled_delivery_can_be_asked_for_again(store: JobStore) -> None:
    key = submit(store, webhook=Webhook("http://h/"))
    store.run(records.cancel(key))
    row = leased(store)
    store.run(deliveries.fix_body(row, "body"))
    store.run(deliveries.settle(row, Delivery.FAILED, deliveries.Attempt(1, 1.0, 500, "HTTP 500")))
    assert store.run(deliveries.redeliver("default", row.id, job_id=key.id)).state is Delivery.PENDING
    store.run(deliveries.redeliver("default", row.id, job_id=key.id))
    again = leased(store)
    assert (again.id, again.body, again.tries) == (row.id, "body", 2)
    assert read(store, key).delivery is Delivery.PENDING
    assert due(store) == ()
    with pytest.raises(UnknownDelivery):
        store.run(deliveries.redeliver("default", "msg_other", job_id=key.id))
    with pytest.raises(UnknownJob):
        store.run(deliveries.redeliver("default", row.id, job_id="never"))


def test_a_delivery_says_when_it_is_tried_next_and_can_be_hastened(store: JobStore) -> None:
    key = submit(store, webhook=Webhook("http://h/"))
    store.run(records.cancel(key))
    row = leased(store)
    assert store.run(deliveries.redeliver("default", row.id, job_id=key.id)).due_s is None  # a try is under way
    assert due(store) == ()
    note = deliveries.Attempt(1, 1.0, 500, "HTTP 500")
    store.run(deliveries.settle(row, Delivery.PENDING, note, delay_s=300))
    [waiting] = store.run(deliveries.deliveries(key))
    assert waiting.due_s == pytest.approx(store.client.time()[0] + 300, abs=10)
    hastened = store.run(deliveries.redeliver("default", row.id, job_id=key.id))
    assert hastened.due_s == pytest.approx(store.client.time()[0], abs=10)
    row = leased(store)
    assert row.tries == 2
    store.run(deliveries.settle(row, Delivery.DELIVERED, note))
    [settled] = store.run(deliveries.deliveries(key))
    assert settled.due_s is None


def test_a_try_is_kept_as_it_was_told(store: JobStore) -> None:
    key = submit(store, webhook=Webhook("http://h/", ("job.queued",)))
    tries = [deliveries.Attempt(n, 1763684595.123456 + n, None, "fetch_failed") for n in (1, 2)]
    for one, then in zip(tries, (Delivery.PENDING, Delivery.DELIVERED), strict=True):
        row = leased(store)
        store.run(deliveries.settle(row, then, one, delay_s=0))
    [record] = store.run(deliveries.deliveries(key))
    assert record.log == tuple(tries)
    told = [event for event in store.run(records.events(key)) if event.type.startswith("delivery.")]
    assert [deliveries.Attempt(**event.data) for event in told] == tries


def test_nobody_is_told_who_did_not_ask(store: JobStore) -> None:
    store.run(records.cancel(submit(store, webhook=Webhook("http://h/", events=("job.succeeded",)))))
    assert due(store) == ()
