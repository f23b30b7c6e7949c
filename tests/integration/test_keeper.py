"""The keeper's duties on a real Valkey, and webhooks to a real receiver."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from standardwebhooks import Webhook as Verifier

from penstock.errors import JobGone, OutOfMemory
from penstock.intake.guard import GuardedClient
from penstock.jobs import Delivery, JobKey, State, Webhook
from penstock.storage.hints import HintSender, celery_queue
from penstock.storage.journal import journal
from penstock.storage.objects.local import LocalStore
from penstock.storage.objects.opening import tenant_webhook_secret
from penstock.storage.redis import deliveries, listing, records, upkeep
from penstock.storage.redis.counts import counts
from penstock.storage.redis.records import Outcome
from penstock.workers.keeper.keeper import TIDY_EVERY_S, Duty, Keeper, sweep, top_up_hints
from penstock.workers.keeper.purge import STEP_JOBS, purge, retire
from penstock.workers.keeper.recovery import recover_if_lost
from penstock.workers.keeper.retention import Leftovers, delete_leftovers, delete_leftovers_when_due
from penstock.workers.keeper.webhooks import Deliverer
from tests.support.claims import claim_one
from tests.support.echo_processor import Bench, open_bench
from tests.support.polling import wait_for
from tests.support.valkey import ValkeyProcess
from tests.support.webhook_receivers import receiving


@pytest.fixture
def bench(valkey: ValkeyProcess, tmp_path: Path) -> Iterator[Bench]:
    with open_bench(valkey.url, tmp_path) as bench:
        yield bench


def ended_job(bench: Bench, url: str) -> JobKey:
    key = bench.submit("a", {"text": bench.upload("hi")}, webhook=Webhook(url))
    bench.slots.work("default")
    return key


def deliver(bench: Bench, *allowed: str) -> deliveries.DeliveryRecord:
    """Send what is due and return the only delivery there is."""
    settings = bench.settings.model_copy(update={"allowed_hosts": allowed})
    deliverer = Deliverer(bench.store, bench.objects, GuardedClient(settings), base_url="http://api")
    assert deliverer.deliver_due() == 1
    deliverer.close()
    [record] = bench.store.run(deliveries.deliveries(JobKey("default", "a")))
    return record


def make_due(bench: Bench, record: deliveries.DeliveryRecord) -> None:
    bench.store.client.zadd("penstock:outbox", {f"default/{record.id}": 0})


def test_the_end_of_a_job_reaches_the_receiver_signed(bench: Bench) -> None:
    with receiving() as receiver:
        key = ended_job(bench, receiver.url)
        record = deliver(bench, receiver.pair)
        headers, body = receiver.got.get(timeout=30)
    event = Verifier(tenant_webhook_secret(bench.objects, "default")).verify(body, headers)
    assert (event["type"], event["data"]["id"], event["data"]["status"]) == ("job.succeeded", "a", "succeeded")
    assert headers["webhook-id"] == record.id
    assert (record.state, record.log[0].status) == (Delivery.DELIVERED, 200)
    assert bench.store.run(records.read(key)).delivery is Delivery.DELIVERED


def test_a_refused_event_is_sent_again_byte_for_byte_under_the_same_id(bench: Bench) -> None:
    with receiving(500, 302, 200) as receiver:
        key = ended_job(bench, receiver.url)
        for status, state in ((500, Delivery.PENDING), (302, Delivery.PENDING), (200, Delivery.DELIVERED)):
            record = deliver(bench, receiver.pair)
            assert (record.log[-1].status, record.state) == (status, state)
            make_due(bench, record)
        sent = [receiver.got.get(timeout=30) for _ in range(3)]
    assert len({body for _, body in sent}) == 1
    assert {headers["webhook-id"] for headers, _ in sent} == {record.id}
    assert bench.store.run(records.read(key)).state is State.SUCCEEDED


def test_a_receiver_that_is_gone_is_not_asked_again(bench: Bench) -> None:
    with receiving(410) as receiver:
        ended_job(bench, receiver.url)
        assert deliver(bench, receiver.pair).state is Delivery.FAILED


def test_nothing_is_sent_to_a_private_address_that_is_not_allowed(bench: Bench) -> None:
    with receiving() as receiver:
        key = ended_job(bench, receiver.url)
        record = deliver(bench)
        assert (record.state, record.log[0].note) == (Delivery.PENDING, "media_refused")
        assert receiver.got.empty()
    assert bench.store.run(records.read(key)).state is State.SUCCEEDED


def test_retention_deletes_the_objects_and_then_the_record(bench: Bench) -> None:
    key = ended_job(bench, "http://h/")
    recover_if_lost(bench.store, bench.objects)
    assert bench.keys(key.prefix)
    retire(bench.store, bench.objects)
    assert bench.keys(key.prefix)
    bench.store.client.zadd("penstock:finished", {str(key): 0})
    retire(bench.store, bench.objects)
    assert bench.keys(key.prefix) == []
    assert bench.store.run(listing.list_jobs("default")).jobs == ()


class CountingStore(LocalStore):
    """A store that counts deletions: each call is one request to S3."""

    deletions: int

    def delete_many(self, keys: Sequence[str]) -> None:
        self.deletions += 1
        super().delete_many(keys)


def over(bench: Bench, count: int) -> list[JobKey]:
    """Return jobs that have ended and whose retention is over."""
    upload = bench.upload("hi")
    keys = [bench.submit(f"over-{number}", {"text": upload}) for number in range(count)]
    for key in keys:
        bench.journal.run(journal.cancel(key))
    bench.store.client.zadd("penstock:finished", {str(key): number for number, key in enumerate(keys)})
    return keys


@pytest.mark.alone
def test_the_keeper_purges_until_nothing_is_due_and_many_objects_at_once(bench: Bench, tmp_path: Path) -> None:
    recover_if_lost(bench.store, bench.objects)
    keys = over(bench, STEP_JOBS + 20)
    assert bench.store.run(counts()).retention_lag_s > 1e9
    objects = CountingStore(tmp_path / "objects")
    objects.deletions = 0
    steps: list[bool] = []
    done = threading.Event()

    def step() -> bool:
        steps.append(more := retire(bench.store, objects))
        if not more:
            done.set()
        return more

    keeper = Keeper(bench.store, [Duty("retire", 10, step)])
    thread = threading.Thread(target=keeper.run)
    thread.start()
    assert done.wait(18), "the second step waits for the next round"
    keeper.end()
    thread.join(10)
    assert steps == [True, False]
    assert objects.deletions == 4
    assert [key for key in keys if bench.keys(key.prefix)] == []
    assert bench.store.run(counts()).retention_lag_s == 0
    with pytest.raises(JobGone):
        bench.store.run(records.read(keys[-1]))


def test_a_job_that_is_not_over_keeps_no_other_from_its_purge(bench: Bench) -> None:
    [key] = over(bench, 1)
    live = bench.submit("live", {"text": bench.upload("hi")})
    bench.store.client.zadd("penstock:finished", {"default/never": 0})
    assert purge(bench.store, bench.objects, [key]) == ()
    assert bench.store.run(upkeep.purge([live, key, JobKey("default", "never")])) == (live, JobKey("default", "never"))
    assert bench.store.run(upkeep.retired()) == ()
    assert bench.store.run(records.read(live)).state is State.QUEUED


def test_leftovers_are_deleted_soon_after_a_start_and_not_again_at_the_next(bench: Bench) -> None:
    orphan = "tenants/default/jobs/none/attempts/1/x"

    def put() -> None:
        bench.objects.put_bytes(orphan, b"x", content_type="text/plain")
        os.utime(bench.settings.data / "objects" / orphan, (1, 1))

    put()
    delete_leftovers_when_due(bench.store, bench.objects, bench.settings)
    assert bench.keys(orphan) == []
    put()
    delete_leftovers_when_due(bench.store, bench.objects, bench.settings)  # another keeper, soon afterwards
    assert bench.keys(orphan) == [orphan]
    bench.store.client.pexpire("penstock:tidied", 1)
    wait_for(lambda: not bench.store.client.exists("penstock:tidied"), "the note does not expire")
    delete_leftovers_when_due(bench.store, bench.objects, bench.settings)
    assert bench.keys(orphan) == []
    assert TIDY_EVERY_S <= 60


def test_a_queue_with_waiting_jobs_always_has_a_hint(bench: Bench) -> None:
    hints = HintSender(bench.settings.redis_address)
    top_up_hints(bench.store, hints)
    assert not bench.store.client.exists(celery_queue("default"))
    bench.submit("a", {"text": bench.upload("hi")})
    top_up_hints(bench.store, hints)
    top_up_hints(bench.store, hints)
    assert bench.store.client.llen(celery_queue("default")) == 1
    [hint] = bench.store.client.lrange(celery_queue("default"), 0, -1)
    assert json.loads(hint)["headers"]["task"] == "penstock.work"


def test_a_job_that_comes_back_has_a_hint_at_once(bench: Bench) -> None:
    hints = HintSender(bench.settings.redis_address)
    key = bench.submit("a", {"text": bench.upload("hi")})
    claim = claim_one(bench.store, "default", models=["echo"])
    sweep(bench.store, hints)
    assert not bench.store.client.exists(celery_queue("default"))
    bench.journal.run(journal.complete(claim, Outcome(State.DELAYED, error=OutOfMemory().report())))
    sweep(bench.store, hints)
    assert bench.store.run(records.read(key)).state is State.QUEUED
    assert bench.store.client.llen(celery_queue("default")) == 1


def test_two_keepers_take_turns_and_a_failing_duty_goes_on(bench: Bench) -> None:
    acted: dict[str, threading.Event] = {"one": threading.Event(), "two": threading.Event()}
    again = threading.Event()

    def duty(name: str) -> None:
        if acted[name].is_set():
            again.set()
        acted[name].set()
        raise ZeroDivisionError

    keepers = {name: Keeper(bench.store, [Duty(name, 0.01, lambda name=name: duty(name))]) for name in acted}
    threads = {}
    for name in ("one", "two"):
        threads[name] = threading.Thread(target=keepers[name].run)
        threads[name].start()
        assert acted["one"].wait(10)
    assert again.wait(10)
    assert not acted["two"].is_set()
    keepers["one"].end()
    threads["one"].join(10)
    assert acted["two"].wait(10)
    keepers["two"].end()
    threads["two"].join(10)
    assert not bench.store.client.exists("penstock:keeper")


def test_a_dead_keepers_place_holds_up_no_duty_that_all_may_do(bench: Bench) -> None:
    assert bench.store.run(upkeep.lead("a dead one", 10))
    swept = threading.Event()
    alone: list[str] = []
    duties = [Duty("alone", 0.01, lambda: alone.append("acted")), Duty("sweep", 0.05, swept.set, always=True)]
    heir = Keeper(bench.store, duties)
    thread = threading.Thread(target=heir.run)
    thread.start()
    assert swept.wait(5)
    heir.end()
    thread.join(10)
    assert not alone


def test_a_duty_that_waits_for_events_is_not_repeated_at_once_when_it_did_not_wait(bench: Bench) -> None:
    asked: list[str] = []
    rounds: list[str] = []
    enough = threading.Event()

    def other() -> None:
        rounds.append("acted")
        if asked and len(rounds) >= 10:
            enough.set()

    duties = [Duty("queue", 0.05, lambda: asked.append("empty"), waits=True), Duty("other", 0.05, other)]
    keeper = Keeper(bench.store, duties)
    thread = threading.Thread(target=keeper.run)
    thread.start()
    assert enough.wait(30)
    keeper.end()
    thread.join(10)
    assert len(asked) < 10 * len(rounds)  # without a pause there are thousands


def test_the_pause_of_a_duty_that_waits_counts_from_its_begin() -> None:
    queue, other = (Duty("a", 2, lambda: None, waits=waits) for waits in (True, False))
    assert [queue.pause_s(more=False, took_s=took_s) for took_s in (0, 0.5, 20)] == [2, 1.5, 0]
    assert [other.pause_s(more=False, took_s=took_s) for took_s in (0, 0.5, 20)] == [2, 2, 2]
    assert queue.pause_s(more=True, took_s=0) == other.pause_s(more=True, took_s=0) == 0


def test_what_nobody_names_is_deleted_after_a_day_and_nothing_else(bench: Bench) -> None:
    done = ended_job(bench, "http://h/")
    waiting = bench.submit("b", {"text": bench.upload("hi")})
    orphans = [f"{done.prefix}attempts/1/x", f"{waiting.prefix}attempts/7/x", "tenants/default/jobs/none/attempts/1/x"]
    for key in orphans:
        bench.objects.put_bytes(key, b"x", content_type="text/plain")
    made_by = bench.keys("tenants/default/environments/")
    kept = [*bench.keys("tenants/default/jobs/a/attempts/17"), *bench.keys("tenants/default/uploads/"), *made_by]
    assert len(kept) == 3
    assert delete_leftovers(bench.store, bench.objects, bench.settings) == Leftovers(0, 0, 0)
    assert delete_leftovers(bench.store, bench.objects, bench.settings, at=time.time() + 90_000) == Leftovers(0, 0, 3)
    manifests = {f"{done.prefix}outcome.json", f"{done.prefix}request.json", f"{waiting.prefix}request.json"}
    assert set(bench.keys("")) == {*kept, *manifests, f"live/default/{waiting.id}"}
    assert delete_leftovers(bench.store, bench.objects, bench.settings, at=time.time() + 8 * 86_400).uploads == 1
