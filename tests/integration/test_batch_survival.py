"""Batches whose keepers are killed (SIGKILL), in real processes: nothing lost, nothing doubled, memory flat."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
import uuid
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.api.batch_intake import store_array
from penstock.api.idempotency import id_from
from penstock.api.routes.batches import _NAMESPACE
from penstock.batches import BatchKey, BatchManifest
from penstock.storage.journal import batch_journal
from penstock.storage.journal.journal import AsyncJournal, Journal
from penstock.storage.objects.base import ObjectInfo
from penstock.storage.redis import batches
from penstock.workers.keeper.retention import delete_leftovers
from tests.support.batch_keeper import KeeperMoves, jsonl, line, read, rows, submitted, upload, work
from tests.support.keeper_process import peak_kb
from tests.support.service import Service, assert_problem, serving
from tests.support.stack import free_port
from tests.support.valkey import ValkeyProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

REQUESTS = 400
#: Moments of an acceptance at which an API may die, and whether the batch is there if nobody asks again.
MOMENTS = {"before_batch_open": False, "after_batch_open": False, "after_request": True, "after_batch_note": True}
#: Moments in the life of a window and of an end; the numbers are how often each has come before.
DEATHS = (
    "run:submit:1", "put:request.json:7", "run:confirm:100", "put:invalid/:1", "put:cursor.json:1", "run:batch_note:1",
    "put:cursor.json:1",
)  # fmt: skip
DEATHS_AT_THE_END = (
    "run:batch_note:1", "run:read:150", "put:results.jsonl:1", "put:errors.jsonl:1", "put:outcome.json:1",
    "run:batch_end:1",
)  # fmt: skip


async def start(service: Service, death: str) -> Process:
    """Start a keeper of batches."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    mine = {
        "PENSTOCK_REDIS_URL": str(service.settings.redis_url), "PENSTOCK_DATA": str(service.settings.data),
        "PENSTOCK_SECRET": "of the tests", "PENSTOCK_ALLOWED_HOSTS": '["files.test:80"]',
        "PENSTOCK_MAX_QUEUED": str(service.settings.max_queued), "PENSTOCK_DURABILITY": service.settings.durability,
    }  # fmt: skip
    command = (sys.executable, "-m", "tests.support.keeper_process", death)
    return await asyncio.create_subprocess_exec(*command, env={**kept, **mine}, stdin=PIPE, stdout=PIPE)


async def end(process: Process) -> int:
    """End a keeper; return the peak of its memory in kilobytes."""
    out, _ = await process.communicate(b"")
    assert process.returncode == 0
    return int(out)


@asynccontextmanager
async def keeping(service: Service) -> AsyncIterator[Process]:
    """Run a keeper that nobody kills."""
    process = await start(service, "never")
    try:
        yield process
    finally:
        if process.returncode is None:
            await end(process)


async def die(service: Service, deaths: Sequence[str]) -> list[int]:
    """Start a keeper for each death, one after the other, and return their exit codes."""
    process = await start(service, "each")
    assert process.stdin is not None
    assert process.stdout is not None
    died = []
    for death in deaths:
        process.stdin.write(f"{death}\n".encode())
        died.append(int(await asyncio.wait_for(process.stdout.readline(), 120)))
    await process.communicate(b"")  # which closes its input
    return died


async def changed(service: Service, key: BatchKey, field: str, value: object) -> dict[str, Any]:
    """Return the batch when a field of it has this value; told by its own events."""
    async with service.jobs.changes(str(key)) as changes:
        while (batch := await read(service, key.id))[field] != value:
            await changes.wait(30)
        return batch


async def test_no_line_is_lost_or_doubled_however_keepers_die(service: Service) -> None:
    lines = [line(str(n), custom_id=str(n)) if n % 10 else {"custom_id": str(n), "input": {}} for n in range(REQUESTS)]
    batch = await submitted(service, file=await upload(service, jsonl(lines)))
    key = BatchKey("default", batch["id"])
    assert await die(service, DEATHS) == [-9] * len(DEATHS)
    async with keeping(service):
        expanded = await changed(service, key, "expanded", REQUESTS)
    assert expanded["counts"]["invalid"] == REQUESTS // 10
    assert await work(service) == REQUESTS - REQUESTS // 10  # every line ran, and once

    assert await die(service, DEATHS_AT_THE_END) == [-9] * len(DEATHS_AT_THE_END)
    async with keeping(service):
        ended = await changed(service, key, "status", "completed")
    assert ended["counts"] == {
        "total": REQUESTS, "queued": 0, "running": 0, "succeeded": 360, "failed": 0, "canceled": 0, "expired": 0,
        "invalid": 40,
    }  # fmt: skip
    results, errors = await rows(service, key.id, "results"), await rows(service, key.id, "errors")
    assert Counter(row["custom_id"] for row in results + errors) == Counter(str(n) for n in range(REQUESTS))
    assert [row["output"]["text"] for row in results] == [str(n) for n in range(REQUESTS) if n % 10]


@pytest.mark.breadth
@pytest.mark.parametrize(("moment", "made"), MOMENTS.items())
async def test_an_api_that_is_killed_amid_a_post_leaves_a_whole_batch_or_none(
    service: Service, tmp_path: Path, moment: str, made: bool
) -> None:
    """Left alone, the keeper decides it; repeated with its Idempotency-Key, it is one batch."""
    requests = [line(str(n)) for n in range(50)]
    alone, again = [
        await die_amid_post(service, tmp_path / name, moment, name, requests) for name in ("alone", "again")
    ]
    repeated = await service.http.post("/v1/batches", json={"requests": requests}, headers={"Idempotency-Key": "again"})
    assert (repeated.status_code, repeated.json()["id"]) == (202, again.id), repeated.text
    if await service.jobs.client.exists(record := f"penstock:tenant:default:batch:{alone.id}"):
        manifest = json.loads(await service.jobs.client.hget(record, "manifest"))
        manifest["created_us"] -= int((batch_journal.RESERVATION_S + 1) * 1e6)  # as it will be in half a minute
        await service.jobs.client.hset(record, "manifest", json.dumps(manifest))
    keeper = KeeperMoves(service)
    for _ in range(2):  # the reservation, then the lines
        await keeper.expand()
    listed = (await service.http.get("/v1/batches")).json()["batches"]
    assert {batch["id"] for batch in listed} == ({alone.id, again.id} if made else {again.id})
    assert [batch["counts"]["queued"] for batch in listed] == [50] * len(listed)
    assert (await service.http.get(f"/v1/batches/{alone.id}")).status_code == (200 if made else 404)
    assert await work(service) == 50 * len(listed)
    await keeper.complete()
    assert (await read(service, again.id))["status"] == "completed"
    deleted = await asyncio.to_thread(
        delete_leftovers, keeper.store, service.objects, service.settings, at=time.time() + 90_000
    )
    assert deleted.batches == (0 if made else 1)
    keeper.close()


async def test_a_slow_post_whose_reservation_was_forgotten_is_a_whole_batch(service: Service) -> None:
    keeper = KeeperMoves(service)

    class Slow:
        """Puts the manifest after the keeper has lost its patience with it."""

        def __getattr__(self, name: str) -> Any:
            return getattr(service.objects, name)

        def put_bytes(self, key: str, data: bytes, **options: Any) -> ObjectInfo:
            if key.endswith("/request.json") and "/batches/" in key:
                for batch in keeper.store.run(batches.open_batches()):
                    assert not Journal(keeper.store, service.objects).run(
                        batch_journal.settle_reservation(keeper.store.run(batches.read(batch)))
                    )
            info: ObjectInfo = service.objects.put_bytes(key, data, **options)
            return info

    journal = AsyncJournal(service.jobs, Slow())  # type: ignore[arg-type]  # what it lacks it passes on
    key = BatchKey("default", str(uuid.uuid4()))
    taken = store_array(service.objects, service.settings, key, [line("a"), line("b")])
    manifest = BatchManifest(
        key=key, fingerprint="f", lines_key=taken.key, size_bytes=taken.size_bytes, total=2,
        created_us=await service.jobs.run(batches.clock()), ttl_s=600, retention_s=600,
    )  # fmt: skip
    assert not (await journal.run(batch_journal.submit(manifest))).batch.reserved
    await keeper.expand()
    assert (await read(service, key.id))["counts"]["queued"] == 2
    keeper.close()


@asynccontextmanager
async def an_api(service: Service, **variables: str) -> AsyncIterator[tuple[Process, httpx2.AsyncClient]]:
    """Run an API in a process of its own, on the stores of this one."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    port = free_port()
    mine = {
        "PENSTOCK_REDIS_URL": str(service.settings.redis_url), "PENSTOCK_DATA": str(service.settings.data),
        "PENSTOCK_SECRET": "of the tests", "PENSTOCK_PORT": str(port),
    }  # fmt: skip
    command = (sys.executable, "-m", "tests.chaos.api_main", "tests.chaos.api_main:app")
    process = await asyncio.create_subprocess_exec(*command, env={**kept, **mine, **variables}, stderr=PIPE)
    assert process.stderr is not None
    while b"running on" not in (said := await asyncio.wait_for(process.stderr.readline(), 120)):
        assert said, "the API ended before it began"
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=120) as web:
        yield process, web
    if process.returncode is None:
        process.terminate()
        await process.communicate()


@pytest.mark.breadth
async def test_a_batch_far_beyond_the_limit_is_refused_and_leaves_nothing(service: Service) -> None:
    """50,000 lines where 10,000 are allowed, 25 MB: from the file, and as JSON in the body."""
    rows = [line(f"{n:06} " + "x" * 450) for n in range(50_000)]
    data = jsonl(rows)
    limits = {"PENSTOCK_MAX_BATCH_LINES": "10000", "PENSTOCK_MAX_BATCH_BYTES": "100000000"}
    async with an_api(service, **limits) as (process, web):
        small = await web.post(
            "/v1/batches", json={"file": await upload(replace(service, http=web), jsonl(rows[:9_000]))}
        )
        assert small.status_code == 202, small.text
        before = set(await service.jobs.client.keys("*")), objects_of(service), peak_kb(process.pid)
        media = await upload(replace(service, http=web), data)
        refused = await web.post("/v1/batches", json={"file": media}, headers={"Idempotency-Key": "k"})
        problem = assert_problem(refused, 422, "media_too_large")
        assert problem["errors"][0]["pointer"] == "/file"
        assert "10000 lines" in problem["detail"]
        inline = await web.post("/v1/batches", json={"requests": rows})
        assert_problem(inline, 413, "payload_too_large")
        assert (set(await service.jobs.client.keys("*")), objects_of(service)) == before[:2]
        assert peak_kb(process.pid) < before[2] + 30_000
    assert [path for path in service.settings.spool_dir.rglob("*") if path.is_file()] == []


def objects_of(service: Service) -> set[str]:
    """Return what there is of batches in the object store."""
    return {info.key for info in service.objects.list("tenants/default/batches/")}


async def die_amid_post(
    service: Service, folder: Path, moment: str, named: str, requests: list[dict[str, Any]]
) -> BatchKey:
    """Post a batch to an API of its own process, which dies at that moment; return the batch's key."""
    folder.mkdir()
    points = {"CHAOS_FAILPOINTS": json.dumps({moment: {}}), "CHAOS_HITS": str(folder)}
    async with an_api(service, **points) as (process, web):
        with pytest.raises(httpx2.TransportError):
            await web.post("/v1/batches", json={"requests": requests}, headers={"Idempotency-Key": named})
        assert await asyncio.wait_for(process.wait(), 60) == -signal.SIGKILL
    return BatchKey("default", id_from(_NAMESPACE, "default", named))


@pytest.mark.breadth
async def test_memory_does_not_grow_with_a_batch(
    valkey: ValkeyProcess, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Every line becomes a job, every job is stopped, every line has its outcome: in one process."""
    peaks = {}
    for many in (500, 20_000):
        valkey.flush()
        folder = tmp_path_factory.mktemp("batch")
        async with serving(valkey.url, folder, durability="redis") as service:
            data = jsonl(line(f"{n:06} " + "x" * 500) for n in range(many))
            batch = await submitted(service, file=await upload(service, data))
            key = BatchKey("default", batch["id"])
            process = await start(service, "never")
            assert (await changed(service, key, "expanded", many))["counts"]["queued"] == many
            await service.http.post(f"/v1/batches/{key.id}/cancel")
            assert (await changed(service, key, "status", "canceled"))["counts"]["canceled"] == many
            assert len(await rows(service, key.id, "errors")) == many
            peaks[many] = await end(process)
    print(f"peak of the keeper's resident memory in kB: {peaks}")  # noqa: T201  (a figure for the reader)
    assert peaks[20_000] < peaks[500] + 40_000
