"""The guard in the whole service: before a job exists, while one runs, and before a webhook is sent."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path

from penstock.intake.guard import GuardedClient
from penstock.jobs import State, Status, Webhook
from penstock.storage.journal import journal
from penstock.storage.redis import deliveries, records
from penstock.workers.keeper.webhooks import Deliverer
from tests.support.canary import canary
from tests.support.echo_processor import open_bench
from tests.support.guards import Names
from tests.support.service import serving
from tests.support.valkey import ValkeyProcess
from tests.support.web_server import Server
from tests.unit.intake.test_addresses import NOT_PUBLIC, REFUSED

#: As far as they come through a JSON body: texts with NUL are refused before.
URLS = [
    url
    for url in (*REFUSED, *(f"http://[{a}]/" if ":" in a else f"http://{a}/" for a in NOT_PUBLIC))
    if "\0" not in url
]


async def test_every_refused_reference_gets_the_same_answer_and_nobody_is_asked(
    valkey: ValkeyProcess, tmp_path: Path
) -> None:
    async with serving(valkey.url, tmp_path, fetch_any_public_host=True) as service:
        await service.submit()  # so that Redis is connected to
        answers: dict[bool, set[tuple[int, str]]] = {True: set(), False: set()}
        with canary() as seen:
            for url in (url for url in URLS if not url.startswith("data:")):  # such a URL is the file itself
                body = {"model": "echo", "input": {"text": "x", "scene": url}}
                response = await service.http.post("/v1/jobs", json=body)
                answers["://" in url].add((response.status_code, response.text))
        # One answer for every URL of whatever host, and one for what is none.
        assert [len(same) for same in answers.values()] == [1, 1], answers
        assert {status for same in answers.values() for status, _ in same} == {422}
        assert seen.looked_up == []
        assert {address[1] for address in seen.connected} <= {valkey.port}
        assert (await service.http.get("/v1/jobs")).json()["jobs"][1:] == []


async def test_no_refused_receiver_is_taken(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path) as service:
        await service.submit()
        with canary() as seen:
            for url in URLS:
                body = {"model": "echo", "input": {"text": "x"}, "webhook": {"url": url}}
                assert (await service.http.post("/v1/jobs", json=body)).status_code == 422
        assert seen.looked_up == []
        assert {address[1] for address in seen.connected} <= {valkey.port}


def test_a_receiver_whose_name_moved_to_a_special_address_gets_nothing(valkey: ValkeyProcess, tmp_path: Path) -> None:
    with open_bench(valkey.url, tmp_path) as bench:
        key = bench.submit("a", {"text": bench.upload("hi")}, Webhook("http://moved.example/hook"))
        assert bench.slots.work("default") == 1
        guard = GuardedClient(bench.settings, Names({"moved.example": ["169.254.169.254"]}))
        deliverer = Deliverer(bench.store, bench.objects, guard, base_url="http://here")
        with canary() as seen:
            assert deliverer.deliver_due() == 1
            deliverer.close()
        (delivery,) = bench.store.run(deliveries.deliveries(key))
    assert {address[1] for address in seen.connected} <= {valkey.port}
    assert [(entry.status, entry.note) for entry in delivery.log] == [(None, "media_refused")]


def test_a_cancel_ends_a_download_that_never_would(valkey: ValkeyProcess, tmp_path: Path) -> None:
    begun = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        begun.set()
        with suppress(OSError):
            while not server.over.wait(0.05):
                connection.sendall(b"x")

    with Server(drip) as server:
        pair = f"127.0.0.1:{server.port}"
        with open_bench(valkey.url, tmp_path, allowed_hosts=(pair,)) as bench:
            key = bench.submit("a", {"text": f"http://{pair}/slow"})
            worker = threading.Thread(target=bench.slots.work, args=("default",))
            worker.start()
            assert begun.wait(60)
            assert bench.journal.run(journal.cancel(key)).status is Status.CANCELING
            worker.join()
            assert bench.store.run(records.read(key)).state is State.CANCELED
