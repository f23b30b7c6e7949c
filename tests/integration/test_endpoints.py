"""Webhook endpoints in a real Valkey and object store: events, concurrent changes, and recovery."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.config import Settings
from penstock.errors import IdempotencyMismatch, StateConflict, UnknownEndpoint
from penstock.jobs import Delivery, Phase, Progress, State, Webhook
from penstock.storage.journal import endpoint_changes, endpoints, journal
from penstock.storage.journal.endpoints import Endpoint, EndpointKey
from penstock.storage.journal.journal import Flow, Journal
from penstock.storage.objects.local import LocalStore
from penstock.storage.redis import deliveries, records
from penstock.storage.redis.records import JobStore, Outcome
from penstock.workers.keeper.keeper import settle_endpoints
from penstock.workers.keeper.recovery import recover_if_lost
from penstock.workers.keeper.retention import delete_leftovers
from tests.support.bare_store import LIMITS, claim, read, submission, submit
from tests.support.crashes import Crashed, Fragile
from tests.support.webhook_receivers import ENDPOINT, a_key, an_endpoint, due

NOTE = deliveries.Attempt(1, 1.0, 500, "HTTP 500")


@pytest.fixture
def desk(store: JobStore, tmp_path: Path) -> Journal:
    return Journal(store, LocalStore(tmp_path / "objects"))


def told(store: JobStore) -> set[tuple[str, str | None]]:
    return {(row.event, row.endpoint) for row in due(store)}


def publish_late(desk: Journal, key: EndpointKey = ENDPOINT) -> Endpoint:
    return endpoints.read_endpoint(desk.objects, key)


class TestWhoIsTold:
    def test_the_end_of_any_job_is_told_to_each_endpoint_and_to_the_jobs_own_webhook(
        self, desk: Journal, store: JobStore
    ) -> None:
        for n in (1, 2):
            an_endpoint(desk, f"http://h/{n}", a_key(n))
        key = submit(store, webhook=Webhook("http://own/"))
        store.run(records.cancel(key))
        rows = due(store)
        assert {(row.event, row.url) for row in rows} == {
            ("job.canceled", "http://own/"), ("job.canceled", "http://h/1"), ("job.canceled", "http://h/2")
        }  # fmt: skip
        assert len({row.id for row in rows}) == 3
        assert read(store, key).delivery is Delivery.PENDING

    def test_what_was_not_asked_for_is_not_told(self, desk: Journal, store: JobStore) -> None:
        an_endpoint(desk, key=a_key(1), models=("other",))
        an_endpoint(desk, key=a_key(2), enabled=False)
        an_endpoint(desk, key=a_key(3), events=("job.succeeded",))
        an_endpoint(desk, key=EndpointKey("else", a_key(4).id))
        an_endpoint(desk, key=a_key(5), events=("job.started",), models=("m",))
        key = submit(store)
        claim(store)
        assert told(store) == {("job.started", a_key(5).id)}
        assert len(store.run(deliveries.deliveries(key))) == 1

    def test_an_end_before_the_endpoint_was_made_is_not_for_it(self, desk: Journal, store: JobStore) -> None:
        desk.run(journal.submit(submission(), replace(LIMITS, durable=True)))
        desk.run(journal.cancel(submission().key))
        an_endpoint(desk)
        store.client.flushall()
        recover_if_lost(store, desk.objects)
        assert read(store, submission().key).state is State.CANCELED
        assert told(store) == set()

    def test_progress_is_told_once_in_ten_seconds_and_only_the_latest(self, desk: Journal, store: JobStore) -> None:
        an_endpoint(desk, events=("job.progress",))
        key = submit(store)
        [held] = claim(store)

        def beat(done: int) -> None:
            fields = {"reported_us": "0"}
            store.client.hset("penstock:tenant:default:job:a", mapping=fields)
            store.run(records.heartbeat(held, Phase.INFERRING, Progress(done, 9)))

        def ten_seconds_later() -> None:
            store.client.hset("penstock:tenant:default:job:a", "progress_told_us", "0")

        beat(1)
        beat(2)
        [first] = due(store)
        ten_seconds_later()
        beat(3)  # the first is still on its way
        assert due(store) == []
        store.run(deliveries.settle(first, Delivery.DELIVERED, NOTE))
        ten_seconds_later()
        beat(4)
        [second] = due(store)
        assert second.id != first.id
        assert [row.id for row in store.run(deliveries.deliveries(key))] == [second.id]
        assert read(store, key).delivery is Delivery.NONE

    def test_progress_of_a_job_that_is_over_is_no_news(self, desk: Journal, store: JobStore) -> None:
        an_endpoint(desk, events=("job.progress", "job.succeeded"))
        submit(store)
        [held] = claim(store)
        store.run(records.heartbeat(held, Phase.INFERRING, Progress(1, 9)))
        store.run(records.complete(held, Outcome(State.SUCCEEDED)))
        assert told(store) == {("job.succeeded", ENDPOINT.id)}


class TestChanges:
    def test_the_secret_is_in_the_object_store_and_not_in_redis(self, desk: Journal, store: JobStore) -> None:
        made = an_endpoint(desk)
        assert publish_late(desk) == made
        assert made.secret.startswith("whsec_")
        assert made.secret not in repr(made)
        assert made.secret.removeprefix("whsec_") not in str(list(_everything(store)))

    def test_the_same_request_again_makes_one_endpoint(self, desk: Journal) -> None:
        first = an_endpoint(desk, fingerprint="f")
        again, created = desk.run(endpoint_changes.create(Endpoint(ENDPOINT, "http://h/", (), 0, 0, fingerprint="f")))
        assert (again, created) == (first, False)
        with pytest.raises(IdempotencyMismatch):
            an_endpoint(desk, "http://other/", fingerprint="g")

    def test_changes_that_meet_are_all_made(self, desk: Journal) -> None:
        an_endpoint(desk, events=("none",))

        def add(n: int) -> Endpoint:
            return desk.run(
                endpoint_changes.change(ENDPOINT, lambda found, _: replace(found, events=(*found.events, str(n))))
            )

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(add, range(8)))
        found = publish_late(desk)
        assert sorted(found.events) == sorted(["none", *map(str, range(8))])
        assert found.revision == 9

    def test_a_replaced_secret_signs_for_a_time_and_is_gone_from_the_store_with_the_next_change(
        self, desk: Journal
    ) -> None:
        old = an_endpoint(desk).secret
        rotated = desk.run(endpoint_changes.change(ENDPOINT, endpoint_changes.rotated(60)))
        now = rotated.created_s
        assert rotated.signing(now) == (rotated.secret, old)
        assert rotated.signing(now + 600) == (rotated.secret,)
        revoked = desk.run(endpoint_changes.change(ENDPOINT, endpoint_changes.rotated(0)))
        assert revoked.signing(now) == (revoked.secret,)
        stored = b"".join(desk.objects.get_bytes(i.key, limit_bytes=9999) for i in desk.objects.list("tenants/"))
        assert old.encode() not in stored

    def test_no_secret_is_dropped_before_its_time(self, desk: Journal) -> None:
        an_endpoint(desk)
        for _ in range(4):
            desk.run(endpoint_changes.change(ENDPOINT, endpoint_changes.rotated(60)))
        before = publish_late(desk)
        with pytest.raises(StateConflict):
            desk.run(endpoint_changes.change(ENDPOINT, endpoint_changes.rotated(60)))
        assert publish_late(desk) == before

    @pytest.mark.parametrize("what", ["create", "change", "delete"])
    def test_one_that_stops_half_way_is_settled_by_the_keeper(self, desk: Journal, store: JobStore, what: str) -> None:
        flows: dict[str, Callable[[], Flow[Any]]] = {
            "create": lambda: endpoint_changes.create(Endpoint(a_key(2), "http://new/", (), 0, 0)),
            "change": lambda: endpoint_changes.change(ENDPOINT, lambda found, _: replace(found, url="http://new/")),
            "delete": lambda: endpoint_changes.delete(ENDPOINT),
        }
        for steps in itertools.count():
            store.client.flushall()
            desk.objects.delete_prefix("")
            an_endpoint(desk, "http://old/")
            fragile = Fragile(store, desk.objects, steps)
            try:
                fragile.run(flows[what]())
            except Crashed:
                settle_endpoints(store, desk.objects, age_s=0)
            stored = {str(e.key): e.url for e in endpoints.list_endpoints(desk.objects, "default")}
            store.run(records.cancel(submit(store)))
            assert {f"default/{row.endpoint}": row.url for row in due(store)} == stored, steps
            assert not store.client.exists("penstock:endpoints:changing")
            if fragile.left > 0:
                break
        assert steps > 2

    def test_a_deleted_endpoint_is_not_changed_and_its_deliveries_end(self, desk: Journal, store: JobStore) -> None:
        an_endpoint(desk)
        key = submit(store)
        store.run(records.cancel(key))
        desk.run(endpoint_changes.delete(ENDPOINT))
        [row] = store.run(deliveries.deliveries(key))
        assert (row.state, row.log[-1].note, row.due_s) == (Delivery.FAILED, "endpoint_deleted", None)
        assert read(store, key).delivery is Delivery.FAILED
        assert due(store) == []
        assert store.run(deliveries.dead_deliveries("default", endpoint=None, limit=9)) == ((), False)
        with pytest.raises(StateConflict):
            store.run(deliveries.redeliver("default", row.id))
        with pytest.raises(UnknownEndpoint):
            desk.run(endpoint_changes.delete(ENDPOINT))
        assert endpoints.list_endpoints(desk.objects, "default") == ()

    def test_what_a_disabled_endpoint_missed_waits_to_be_sent_again(self, desk: Journal, store: JobStore) -> None:
        an_endpoint(desk)
        store.run(records.cancel(submit(store)))
        desk.run(endpoint_changes.change(ENDPOINT, endpoint_changes.disabled("http://h/", "gone")))
        assert due(store) == []
        [dead], more = store.run(deliveries.dead_deliveries("default", endpoint=ENDPOINT.id, limit=9))
        assert (dead.log[-1].note, more) == ("endpoint_disabled", False)
        desk.run(endpoint_changes.change(ENDPOINT, lambda found, _: replace(found, enabled=True, url="http://new/")))
        store.run(deliveries.redeliver("default", dead.id))
        [again] = due(store)
        assert (again.id, again.url) == (dead.id, "http://new/")
        assert store.run(deliveries.dead_deliveries("default", endpoint=None, limit=9)) == ((), False)

    def test_what_nobody_needs_is_tidied_away(self, desk: Journal, store: JobStore) -> None:
        for n in (1, 2):
            an_endpoint(desk, key=a_key(n))
            desk.run(endpoint_changes.change(a_key(n), endpoint_changes.rotated(60)))
        desk.run(endpoint_changes.delete(a_key(2)))
        settings = Settings()
        assert delete_leftovers(store, desk.objects, settings).revisions == 0
        assert delete_leftovers(store, desk.objects, settings, at=time.time() + 90_000).revisions == 3
        assert delete_leftovers(store, desk.objects, settings, at=time.time() + 9 * 86_400).revisions == 1
        assert store.client.hkeys("penstock:tenant:default:endpoints") == [a_key(1).id]
        assert [e.key for e in endpoints.list_endpoints(desk.objects, "default")] == [a_key(1)]


class TestAnEmptiedRedis:
    def test_knows_the_endpoints_again(self, desk: Journal, store: JobStore) -> None:
        an_endpoint(desk, "http://kept/")
        store.client.flushall()
        recover_if_lost(store, desk.objects)
        store.run(records.cancel(submit(store)))
        assert [row.url for row in due(store)] == ["http://kept/"]

    def test_tells_of_what_ended_while_it_did_not_know_them(self, desk: Journal, store: JobStore) -> None:
        recover_if_lost(store, desk.objects)
        an_endpoint(desk)
        store.client.flushall()
        key = submit(store)
        store.run(records.cancel(key))
        assert due(store) == []
        recover_if_lost(store, desk.objects)
        assert told(store) == {("job.canceled", ENDPOINT.id)}
        assert read(store, key).delivery is Delivery.PENDING
        assert not store.client.exists("penstock:unannounced")

    def test_does_not_end_a_delivery_whose_endpoint_it_does_not_know_yet(self, desk: Journal, store: JobStore) -> None:
        an_endpoint(desk)
        store.run(records.cancel(submit(store)))
        store.client.delete("penstock:tenant:default:endpoints")
        assert due(store) == []
        recover_if_lost(store, desk.objects)
        [name] = store.client.zrange("penstock:outbox", 0, -1)
        store.client.zadd("penstock:outbox", {name: 0})
        assert told(store) == {("job.canceled", ENDPOINT.id)}

    def test_sends_the_same_again_under_the_same_id(self, desk: Journal, store: JobStore) -> None:
        an_endpoint(desk)
        desk.run(journal.submit(submission(), replace(LIMITS, durable=True)))
        desk.run(journal.cancel(submission().key))
        [before] = due(store)
        store.client.flushall()
        recover_if_lost(store, desk.objects)
        [after] = due(store)
        assert (after.id, after.created_s, after.endpoint) == (before.id, before.created_s, ENDPOINT.id)


def test_pages_of_an_endpoints_deliveries_hold_each_once_even_of_one_moment(desk: Journal, store: JobStore) -> None:
    an_endpoint(desk)
    ids = [str(n) for n in range(7)]
    for name in ids:
        submit(store, name)
        store.client.zadd("penstock:expiring", {f"default/{name}": 0})
    store.run(records.sweep())  # all at once
    seen: list[str] = []
    cursor: str | None = None
    for _ in range(9):
        page = store.run(deliveries.endpoint_deliveries("default", ENDPOINT.id, cursor=cursor, limit=3))
        seen += [row.key.id for row in page.deliveries]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert sorted(seen) == ids
    store.run(records.delete(submission("3").key))
    page = store.run(deliveries.endpoint_deliveries("default", ENDPOINT.id, cursor=None, limit=9))
    assert len(page.deliveries) == 6


def _everything(store: JobStore) -> Iterator[Any]:
    for key in store.client.scan_iter("*"):
        kind = store.client.type(key)
        match kind:
            case "hash":
                yield store.client.hgetall(key)
            case "zset":
                yield store.client.zrange(key, 0, -1)
            case "string":
                yield store.client.get(key)
            case _:
                yield json.dumps(kind)
