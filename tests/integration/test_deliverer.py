"""Deliveries to real receivers that are down, slow, redirect and lie: nobody else waits for them."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from standardwebhooks import Webhook as Verifier

from penstock.config import Settings
from penstock.intake.guard import GuardedClient
from penstock.jobs import Delivery, Job, JobKey, State, Webhook
from penstock.storage.journal import endpoint_changes, endpoints
from penstock.storage.journal.journal import Journal
from penstock.storage.objects.local import LocalStore
from penstock.storage.redis import deliveries, records
from penstock.storage.redis.records import JobStore, Outcome
from penstock.workers.keeper.webhooks import Deliverer
from tests.support import web_server
from tests.support.bare_store import claim, read, submit
from tests.support.webhook_receivers import ENDPOINT, a_key, an_endpoint, due, receiving

HEALTH = f"penstock:tenant:default:receiver:{ENDPOINT.id}:health"
FAILED = deliveries.Attempt(1, 1.0, 500, "HTTP 500")


@pytest.fixture
def desk(store: JobStore, tmp_path: Path) -> Journal:
    return Journal(store, LocalStore(tmp_path / "objects"))


def end_jobs(store: JobStore, *names: str, **changes: Any) -> list[JobKey]:
    keys = [submit(store, name, **changes) for name in names]
    for key in keys:
        store.run(records.cancel(key))
    return keys


@contextmanager
def delivering(desk: Journal, *pairs: str) -> Iterator[Deliverer]:
    settings = Settings(allowed_hosts=pairs)
    deliverer = Deliverer(desk.store, desk.objects, GuardedClient(settings), base_url="http://api")
    yield deliverer
    deliverer.close()


def hurry(store: JobStore) -> None:
    """Let all that waits be due."""
    for name in store.client.zrange("penstock:outbox", 0, -1):
        store.client.zadd("penstock:outbox", {name: 0})


def end_leases(store: JobStore) -> None:
    """Let the leases of all tries be over, as they are a minute after their keeper died."""
    for pattern in ("penstock:tenant:*:receiver:*:busy", "penstock:tenant:*:sending"):
        for name in store.client.scan_iter(pattern):
            store.client.delete(name)
    for name in store.client.scan_iter("penstock:tenant:*:receivers"):
        for receiver in store.client.zrange(name, 0, -1):
            store.client.zadd(name, {receiver: 0})


def until(store: JobStore, deliverer: Deliverer, done: Callable[[], bool]) -> None:
    """Do what the keeper does until something has come of it."""
    ends = time.monotonic() + 60
    while not done():
        assert time.monotonic() < ends, "it never happened"
        deliverer.deliver_due()
        store.client.blpop(["nothing"], 0.05)  # a moment of the keeper's


def test_a_tarpit_holds_some_threads_and_nobody_else(desk: Journal, store: JobStore) -> None:
    with receiving() as slow, receiving() as good:
        slow.opened.clear()
        an_endpoint(desk, slow.url, a_key(1))
        end_jobs(store, *(f"s{n}" for n in range(40)))
        an_endpoint(desk, good.url, a_key(2))
        with delivering(desk, slow.pair, good.pair) as deliverer:
            deliverer.deliver_due()
            for _ in range(deliveries.PER_RECEIVER):
                slow.holding.get(timeout=30)
            end_jobs(store, *(f"g{n}" for n in range(40)))
            until(store, deliverer, lambda: good.came == 40)
            assert slow.came == deliveries.PER_RECEIVER  # none of them had answered by then
            slow.opened.set()
            until(store, deliverer, lambda: slow.came == 80)
    ids = {headers["webhook-id"] for headers, _ in slow.got.queue}
    assert len(ids) == 80


def test_a_tenant_with_many_slow_receivers_holds_up_no_other_tenant(store: JobStore) -> None:
    for n in range(100):
        hook = Webhook(f"http://h{n}/")
        end_jobs(store, f"j{n}", tenant="greedy" if n < 99 else "modest", webhook=hook)
    rows = due(store, 64)
    tenants = [row.key.tenant for row in rows]
    assert (tenants.count("greedy"), tenants.count("modest")) == (deliveries.PER_TENANT, 1)
    assert due(store, 64) == []
    store.run(deliveries.settle(rows[0], Delivery.DELIVERED, FAILED))
    assert len(due(store, 64)) == 1


def test_a_receiver_that_fails_again_and_again_rests_and_is_then_asked_by_one(desk: Journal, store: JobStore) -> None:
    an_endpoint(desk)
    end_jobs(store, *map(str, range(30)))
    for _ in range(5):
        [row] = due(store, 1)
        store.run(deliveries.settle(row, Delivery.PENDING, FAILED, delay_s=300))
    assert due(store) == []
    assert rests_s(store) == pytest.approx(30, abs=10)
    wake(store)
    [probe] = due(store)
    assert due(store) == []
    store.run(deliveries.settle(probe, Delivery.PENDING, FAILED, delay_s=300))
    assert due(store) == []
    assert rests_s(store) == pytest.approx(60, abs=10)
    wake(store)
    [probe] = due(store)
    store.run(deliveries.settle(probe, Delivery.DELIVERED, FAILED))
    assert len(due(store)) == deliveries.PER_RECEIVER
    assert not store.client.exists(HEALTH)


def rests_s(store: JobStore) -> float:
    """Return for how long the endpoint is left alone."""
    return int(store.client.hget(HEALTH, "open_us") or 0) / 1e6 - store.client.time()[0]


def wake(store: JobStore) -> None:
    """Let the rest of the endpoint be over."""
    store.client.hset(HEALTH, "open_us", "0")
    store.client.zadd("penstock:tenant:default:receivers", {ENDPOINT.id: 0})


def test_what_somebody_asks_for_does_not_wait_for_a_resting_receiver(desk: Journal, store: JobStore) -> None:
    an_endpoint(desk)
    end_jobs(store, *map(str, range(9)))
    for row in due(store)[:8]:
        store.run(deliveries.settle(row, Delivery.PENDING, FAILED, delay_s=300))
    assert due(store) == []
    asked = store.run(deliveries.send_test("default", ENDPOINT.id, url="http://h/", delivery_id="msg_t", body="{}"))
    assert [row.id for row in due(store)] == [asked.id]


def test_a_delivery_is_given_up_after_four_days_and_may_be_sent_by_hand(desk: Journal, store: JobStore) -> None:
    an_endpoint(desk)
    [key] = end_jobs(store, "a")
    [row] = store.run(deliveries.deliveries(key))
    store.client.hset(
        f"penstock:tenant:default:delivery:{row.id}", "created_us", int((time.time() - 4.1 * 86_400) * 1e6)
    )
    assert due(store) == []
    [dead], _ = store.run(deliveries.dead_deliveries("default", endpoint=None, limit=9))
    assert (dead.id, dead.log[-1].note, dead.log[-1].status) == (row.id, "gave_up", None)
    store.run(deliveries.redeliver("default", row.id))
    assert [again.id for again in due(store)] == [row.id]


def test_a_dead_receiver_a_liar_and_a_redirect_are_tried_again_and_the_others_are_told(
    desk: Journal, store: JobStore
) -> None:
    def drops(connection: Any) -> bytes:
        connection.close()
        return b""

    with (
        receiving() as good,
        receiving() as elsewhere,
        web_server.Server(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\nshort") as cut,
        web_server.Server(b"not http at all\r\n\r\n") as liar,
        web_server.Server(web_server.reply(302, Location=elsewhere.url)) as redirect,
        web_server.Server(web_server.reply(503, Retry_After="120")) as busy,
        web_server.Server(drops) as dropping,
    ):
        servers = [cut, liar, redirect, busy, dropping]
        urls = [good.url, *(f"http://127.0.0.1:{server.port}/" for server in servers), "http://127.0.0.1:9/"]
        for n, url in enumerate(urls):
            an_endpoint(desk, url, a_key(n))
        [key] = end_jobs(store, "a")
        pairs = [good.pair, elsewhere.pair, "127.0.0.1:9", *(f"127.0.0.1:{server.port}" for server in servers)]
        with delivering(desk, *pairs) as deliverer:
            assert deliverer.deliver_due() == len(urls)
        assert elsewhere.came == 0
    rows = {row.url: row for row in store.run(deliveries.deliveries(key))}
    states = [(rows[url].state.value, rows[url].log[0].note) for url in urls]
    liar, refused = (("pending", f"fetch_failed: {why}") for why in (
        "the server did not respond properly", "the connection was refused"
    ))  # fmt: skip
    assert states == [
        ("delivered", "HTTP 200"), ("delivered", "HTTP 200"), liar, ("pending", "HTTP 302"), ("pending", "HTTP 503"),
        liar, refused,
    ]  # fmt: skip
    waits_s = (rows[urls[4]].due_s or 0) - time.time()
    assert 60 < waits_s <= 121
    assert read(store, key).delivery is Delivery.PENDING


def test_a_rotated_secret_is_used_from_the_next_delivery_on(desk: Journal, store: JobStore) -> None:
    with receiving() as receiver, delivering(desk, receiver.pair) as deliverer:
        old = an_endpoint(desk, receiver.url).secret
        end_jobs(store, "a")
        until(store, deliverer, lambda: receiver.came == 1)
        new = desk.run(endpoint_changes.change(ENDPOINT, endpoint_changes.rotated(60))).secret
        end_jobs(store, "b")
        until(store, deliverer, lambda: receiver.came == 2)
        revoked = desk.run(endpoint_changes.change(ENDPOINT, endpoint_changes.rotated(0))).secret
        end_jobs(store, "c")
        until(store, deliverer, lambda: receiver.came == 3)
        sent = [receiver.got.get(timeout=30) for _ in range(3)]
    assert [len(headers["webhook-signature"].split(" ")) for headers, _ in sent] == [1, 2, 1]
    for number, secret in ((0, old), (1, old), (1, new), (2, revoked)):
        headers, body = sent[number]
        assert Verifier(secret).verify(body, headers)["type"] == "job.canceled"


def test_a_delivery_goes_on_with_the_trace_of_the_request_that_made_the_job(desk: Journal, store: JobStore) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with receiving(503, 200) as receiver, delivering(desk, receiver.pair) as deliverer:
        end_jobs(store, "traced", webhook=Webhook(receiver.url), traceparent=trace)
        until(store, deliverer, lambda: receiver.came == 1)
        hurry(store)
        until(store, deliverer, lambda: receiver.came == 2)
        end_jobs(store, "plain", webhook=Webhook(receiver.url))
        until(store, deliverer, lambda: receiver.came == 3)
        sent = [receiver.got.get(timeout=5)[0] for _ in range(3)]
    assert [headers.get("traceparent") for headers in sent] == [trace, trace, None]


@pytest.mark.breadth
def test_what_was_begun_by_one_keeper_is_sent_by_the_next_to_the_byte(desk: Journal, store: JobStore) -> None:
    """A keeper is killed with tries under way, again and again: every event arrives, under one id and in one body."""
    with receiving() as receiver:
        an_endpoint(desk, receiver.url, events=("job.started", "job.canceled"))
        keys = [submit(store, f"j{n}") for n in range(12)]
        for key in keys:
            store.run(records.cancel(key))
        receiver.opened.clear()
        settings = {
            "PENSTOCK_REDIS_URL": _url(store), "PENSTOCK_OBJECT_STORE": desk.objects.root.as_uri(),  # type: ignore[attr-defined]
            "PENSTOCK_ALLOWED_HOSTS": f'["{receiver.pair}"]',
        }  # fmt: skip
        for _ in range(3):
            keeper = _keeper(settings)
            receiver.holding.get(timeout=60)
            os.kill(keeper.pid, signal.SIGKILL)
            keeper.wait(30)
            store.client.delete("penstock:keeper")  # its place is free after 10 s
            end_leases(store)
            hurry(store)
        receiver.opened.set()
        keeper = _keeper(settings)
        with ThreadPoolExecutor(1) as waiting:
            waiting.submit(_wait_delivered, store, keys).result(120)
        keeper.terminate()
        assert keeper.wait(60) == 0
    sent = list(receiver.got.queue)
    bodies: dict[str, set[bytes]] = {}
    for headers, body in sent:
        bodies.setdefault(headers["webhook-id"], set()).add(body)
    assert set(bodies) == {f"msg_{key.id}_job.canceled_{ENDPOINT.id}" for key in keys}
    assert all(len(texts) == 1 for texts in bodies.values())
    assert len(sent) > len(keys)


def test_the_body_is_stored_before_it_is_sent(desk: Journal, store: JobStore) -> None:
    with receiving() as receiver, delivering(desk, receiver.pair) as deliverer:
        receiver.opened.clear()
        an_endpoint(desk, receiver.url, events=("job.started",))
        key = submit(store)
        [held] = claim(store)
        deliverer.deliver_due()
        _, body = receiver.got.get(timeout=30)
        store.run(records.complete(held, Outcome(State.SUCCEEDED)))
        [row] = store.run(deliveries.deliveries(key))
        assert (row.body, row.state) == (body.decode(), Delivery.PENDING)  # nobody has answered yet
        receiver.opened.set()


def _url(store: JobStore) -> str:
    options = store.client.connection_pool.connection_kwargs
    return f"redis://{options['host']}:{options['port']}/0"


def _keeper(settings: dict[str, str]) -> subprocess.Popen[bytes]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    command = ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "penstock.cli", "keeper"]
    return subprocess.Popen(command, env={**kept, **settings}, stderr=subprocess.DEVNULL)


def _wait_delivered(store: JobStore, keys: list[JobKey]) -> list[Job]:
    """Return when all jobs' deliveries are settled, hurrying what a dead keeper has left."""
    with store.client.pubsub() as channel:
        channel.subscribe("penstock:changes")
        while True:
            jobs = [read(store, key) for key in keys]
            if all(job.delivery is Delivery.DELIVERED for job in jobs):
                return jobs
            channel.get_message(ignore_subscribe_messages=True, timeout=2)


@pytest.fixture
def said() -> Iterator[io.StringIO]:
    """Return what is logged, with nothing hidden from it."""
    stream = io.StringIO()
    structlog.configure(
        processors=[structlog.processors.JSONRenderer()], logger_factory=structlog.WriteLoggerFactory(file=stream)
    )
    yield stream
    structlog.reset_defaults()


def test_no_secret_is_in_what_the_keeper_logs(desk: Journal, store: JobStore, said: io.StringIO) -> None:
    with receiving(500, 410) as receiver, delivering(desk, receiver.pair) as deliverer:
        made = an_endpoint(desk, receiver.url)
        end_jobs(store, "a", "b")
        until(store, deliverer, lambda: receiver.came == 2)
    assert endpoints.read_endpoint(desk.objects, ENDPOINT).enabled is False
    assert "delivery.tried" in said.getvalue()
    assert made.secret.removeprefix("whsec_") not in said.getvalue()
