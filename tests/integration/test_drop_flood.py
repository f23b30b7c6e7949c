"""Many objects at once, their events doubled, out of order and half of them lost, and keepers killed: one job each.

`PENSTOCK_FLOOD=10000` sets how many; the bucket is on a real S3 server, the keepers are processes of their own.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import httpx2
import pytest

from penstock.config_tables import DropRule
from penstock.storage.objects.opening import open_store
from penstock.storage.redis import catalogues, listing
from penstock.storage.redis.counts import counts
from penstock.workers.keeper.drops import DONE, open_drops
from tests.chaos.processes import ROOT, Kept
from tests.support.api_server import listening
from tests.support.aws_emulators import REGION, Emulator, emulating
from tests.support.ceph import Ceph
from tests.support.echo_processor import Bench, open_bench
from tests.support.polling import wait_for
from tests.support.service import serving
from tests.support.valkey import ValkeyProcess

OBJECTS = int(os.environ.get("PENSTOCK_FLOOD", "200"))
SEED = 7
KEEPERS = 2
#: Each time that so much of the whole is done, every keeper is killed.
KILL_AT = (0.2, 0.6) if OBJECTS < 1000 else (0.05, 0.2, 0.4, 0.6, 0.8, 0.95)
WORKERS = 8
TIMEOUT_S = 600 + OBJECTS

pytestmark = [pytest.mark.slow, pytest.mark.breadth, pytest.mark.timeout(TIMEOUT_S + 300)]


def name_of(number: int) -> str:
    """Half of them under the prefix of a rule that hears by HTTP, half by SQS; some with names that are encoded."""
    odd = " ä+%2F"[number % 6 :][:1] if number % 3 == 0 else ""
    return f"{'http' if number % 2 else 'sqs'}/{number:05d}{odd}.txt"


def event(bucket: str, number: int) -> dict[str, Any]:
    """As AWS says it."""
    found = {"key": quote_plus(name_of(number), safe="/"), "size": 5, "sequencer": f"00{number:08X}"}
    return {
        "eventSource": "aws:s3", "eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": bucket}, "object": found}
    }  # fmt: skip


def deeds(chance: random.Random, put: Callable[[int], None], tell: Callable[[int], None]) -> list[Callable[[], None]]:
    """Put every object, and tell of about half of them one to three times, in any order, some before they are there."""
    timed: list[tuple[float, Callable[[], None]]] = []
    for number in range(OBJECTS):
        at, times = chance.random(), chance.choice((0, 0, 0, 1, 2, 3))
        timed.append((at, partial(put, number)))
        timed.extend((at + chance.uniform(-0.02, 0.2), partial(tell, number)) for _ in range(times))
    return [deed for _, deed in sorted(timed, key=lambda pair: pair[0])]


@contextmanager
def keepers(folder: Path, bench: Bench, rules: tuple[DropRule, ...]) -> Iterator[list[Kept]]:
    settings, s3 = bench.settings, bench.settings.s3
    assert s3.secret_access_key is not None
    told = {
        "redis_url": settings.redis_url, "data": str(settings.data), "object_store": settings.store_url, "secret": "s",
        "drop_list_s": 5, "drops": json.dumps([rule.model_dump() for rule in rules]), "log_level": "info",
        "s3__endpoint_url": s3.endpoint_url, "s3__region": s3.region, "s3__access_key_id": s3.access_key_id,
        "s3__secret_access_key": s3.secret_access_key.get_secret_value(),
    }  # fmt: skip
    environment = {f"PENSTOCK_{name.upper()}": str(value) for name, value in told.items()}
    environment |= {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, "-m", "penstock.cli", "keeper"]
    running = [Kept(f"keeper-{n}", command, environment, folder / f"keeper-{n}.log") for n in range(KEEPERS)]
    try:
        yield running
    finally:
        for keeper in running:
            keeper.stop()


@contextmanager
def working(bench: Bench) -> Iterator[None]:
    """Work jobs off in threads, as a worker that polls."""
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            if not bench.slots.work("default"):
                ended.wait(0.05)

    threads = [threading.Thread(target=work) for _ in range(WORKERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[Emulator]:
    with emulating("moto", tmp_path) as emulator:
        yield emulator


async def test_each_of_many_objects_becomes_one_job_and_one_result(
    valkey: ValkeyProcess, tmp_path: Path, ceph: Ceph, emulator: Emulator
) -> None:
    name, (queue, _) = ceph.bucket(), emulator.queue(visibility_s=10)
    common: dict[str, Any] = {
        "bucket": f"s3://{name}", "suffixes": (".txt",), "model": "echo", "field": "text", "tenant": "default"
    }  # fmt: skip
    rules = (
        DropRule(name="http", prefix="http/", output_prefix="out/http/", events="webhook", **common),
        DropRule(name="sqs", prefix="sqs/", output_prefix="out/sqs/", events=queue, **common),
    )
    options: dict[str, Any] = {"drops": rules, "s3": ceph.s3.model_copy(update={"region": REGION}), "slots": WORKERS}
    with open_bench(valkey.url, tmp_path / "service", **options) as bench:
        async with serving(valkey.url, tmp_path / "service", **options) as service, listening(service) as server:
            await asyncio.to_thread(flood, bench, tmp_path, rules, emulator, queue, server.url)


def flood(bench: Bench, folder: Path, rules: tuple[DropRule, ...], emulator: Emulator, queue: str, url: str) -> None:
    bucket = open_store(rules[0].bucket, bench.settings)
    name = rules[0].bucket.removeprefix("s3://")
    bench.store.run(catalogues.publish([bench.entry], worker="w", queues=["default"], alive_s=TIMEOUT_S))
    # A connection that is kept may be closed by the server just when it is used again.
    web = httpx2.Client(timeout=60, limits=httpx2.Limits(max_keepalive_connections=0))

    def put(number: int) -> None:
        bucket.put_bytes(name_of(number), f"{number:05d}".encode(), content_type="text/plain")

    def say(number: int) -> None:
        records = {"Records": [event(name, number)]}
        if number % 2:
            assert web.post(f"{url}/v1/events/s3", json=records).status_code == 202
        else:
            emulator.send(queue, json.dumps(records))

    def results() -> int:
        return sum(info.key.endswith(DONE) for info in bucket.list("out/"))

    def reached(share: float) -> bool:
        return sum(bench.store.run(counts()).ended.values()) >= share * OBJECTS

    with keepers(folder, bench, rules) as running, working(bench), ThreadPoolExecutor(4) as pool:
        sent = [pool.submit(deed) for deed in deeds(random.Random(SEED), put, say)]
        for share in KILL_AT:
            wait_for(partial(reached, share), f"no {share} of the results", timeout_s=TIMEOUT_S)
            for keeper in running:
                keeper.signal(signal.SIGKILL)
        for each in sent:
            each.result()
        wait_for(partial(reached, 1), "not every object has a job that ended", timeout_s=TIMEOUT_S)
        wait_for(lambda: results() == OBJECTS, "not every object has a result", timeout_s=TIMEOUT_S)
        wait_for(lambda: emulator.left(queue) == 0, "messages are left", timeout_s=TIMEOUT_S)
    web.close()
    check(bench, bucket)


def check(bench: Bench, bucket: Any) -> None:
    """One job that succeeded and one result for each object, and nothing more to do."""
    jobs, cursor = {}, None
    while True:
        page = bench.store.run(listing.list_jobs("default", cursor=cursor))
        for job in page.jobs:
            source = job.submission.metadata["source"].split("/", 3)[3]
            assert source not in jobs, f"two jobs of {source}"
            jobs[source] = job
        cursor = page.next_cursor
        if cursor is None:
            break
    assert set(jobs) == {name_of(number) for number in range(OBJECTS)}
    found = {info.key for info in bucket.list("out/")}
    assert found == {f"out/{key}{end}" for key in jobs for end in (DONE, "/echo.txt")}
    for number in range(OBJECTS):
        key = name_of(number)
        assert bucket.get_bytes(f"out/{key}/echo.txt", limit_bytes=10) == f"{number:05d}".encode()
        assert json.loads(bucket.get_bytes(f"out/{key}{DONE}", limit_bytes=10_000))["id"] == jobs[key].key.id
    told = bench.store.run(counts())
    assert told.ended == {("echo", "succeeded"): OBJECTS}
    assert [drop.step() for drop in open_drops(bench.settings, bench.store, bench.objects)] == [0, 0]
    assert bench.store.run(counts()).drop_events == told.drop_events
    sys.stdout.write(f"{OBJECTS} objects: {dict(told.drop_events)}\n")
