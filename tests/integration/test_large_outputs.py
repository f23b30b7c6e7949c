"""Large outputs: they lie in the object store, Redis and lists have their place, and every reader gets them whole."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.client import AsyncClient
from penstock.config import Settings
from penstock.errors import JobGone, ObjectStoreUnavailable
from penstock.intake.guard import GuardedClient
from penstock.jobs import Job, JobKey, State, Webhook
from penstock.storage.journal import journal
from penstock.storage.journal.outputs import store_output
from penstock.storage.redis import listing, records
from penstock.storage.redis.records import JobStore, Outcome
from penstock.workers.keeper.drops import open_drops
from penstock.workers.keeper.purge import purge
from penstock.workers.keeper.recovery import recover
from penstock.workers.keeper.webhooks import Deliverer
from tests.integration.test_drops import rule
from tests.integration.test_pipeline import in_thread
from tests.support.batch_keeper import KeeperMoves, line, rows, submitted
from tests.support.claims import claim_one
from tests.support.command_line import Shell
from tests.support.echo_processor import Bench, open_bench
from tests.support.facade_models import facing
from tests.support.service import Service, serving
from tests.support.valkey import ValkeyProcess
from tests.support.webhook_receivers import receiving

#: About 150 kB of JSON.
DATA = {"embeddings": [[n / 7, n / 11] for n in range(4_000)]}
LARGE = Outcome(State.SUCCEEDED, text="hello", data=DATA)
WHOLE = {"text": "hello", "json": DATA}
#: Bytes of a record, with its indexes and events, and of its place in a list.
FEW = 20_000


@pytest.fixture(params=["manifest", "redis"])
async def either(valkey: ValkeyProcess, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Service]:
    async with serving(valkey.url, tmp_path, durability=request.param) as running:
        yield running


async def ended(service: Service, outcome: Outcome = LARGE, **body: Any) -> str:
    """Run a job and return its id."""
    job = await service.submit(**body)
    await service.end(await service.claim(), outcome)
    return str(job["id"])


async def read(service: Service, job_id: str) -> dict[str, Any]:
    response = await service.http.get(f"/v1/jobs/{job_id}")
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def client_of(service: Service) -> AsyncClient:
    return AsyncClient(service.settings.base_url, patience_s=1, transport=httpx2.ASGITransport(service.app))


async def redis_bytes(service: Service, job_id: str) -> int:
    """Return the bytes of all keys of a job."""
    redis = service.jobs.client
    return sum([await redis.memory_usage(key, samples=0) or 0 async for key in redis.scan_iter(f"*{job_id}*")])


async def test_a_large_output_is_in_the_answer_about_one_job_and_neither_in_redis_nor_in_lists(
    either: Service,
) -> None:
    job_id = await ended(either)
    one = await read(either, job_id)
    assert (one["output"], one["artifacts"]) == (WHOLE, [])
    assert await redis_bytes(either, job_id) < FEW

    page = await either.http.get("/v1/jobs")
    assert len(page.content) < FEW
    [listed] = page.json()["jobs"]
    size = len(json.dumps(WHOLE, separators=(",", ":")))
    assert (listed["output"], listed["output_bytes"], one["output_bytes"]) == (None, size, size)
    link = f"{one['links']['self']}/output"
    assert (listed["links"]["output"], one["links"]["output"]) == (link, link)
    document = await either.http.get(link)
    assert (document.json(), document.headers["content-type"]) == (WHOLE, "application/json")
    assert (await either.http.head(link)).headers["content-length"] == str(size)
    async with either.http.stream("GET", f"/v1/jobs/{job_id}/events") as events:
        first = next(text for text in (await events.aread()).decode().split("\n") if text.startswith("data: "))
    snapshot = json.loads(first.removeprefix("data: "))
    assert (snapshot["output"], snapshot["links"]["output"]) == (None, link)
    assert (await either.http.get(f"/v1/jobs/{job_id}/links")).json()["links"] == []


async def test_a_small_output_stays_in_the_record(service: Service) -> None:
    job_id = await ended(service, Outcome(State.SUCCEEDED, text="hi", data={"n": 1}))
    [listed] = (await service.http.get("/v1/jobs")).json()["jobs"]
    assert (listed["output"], listed["output_bytes"]) == ({"text": "hi", "json": {"n": 1}}, None)
    assert (await service.http.get(listed["links"]["output"])).json() == listed["output"]
    assert list(service.objects.list(f"tenants/default/jobs/{job_id}/attempts/")) == []

    none = await read(service, await ended(service, Outcome(State.SUCCEEDED)))
    assert (none["output"], none["links"]["output"]) == (None, None)
    assert (await service.http.get(f"{none['links']['self']}/output")).json()["code"] == "unknown_artifact"


async def test_a_wait_and_a_repeated_request_carry_the_link(service: Service) -> None:
    own = "018f0000-0000-7000-8000-00000000000b"
    send = service.http.put(
        f"/v1/jobs/{own}", json={"model": "echo", "input": {"text": "hello"}}, headers={"Prefer": "wait=50"}
    )
    waiting = asyncio.create_task(send)
    await asyncio.to_thread(service.hints.get, timeout=20)
    await service.end(await service.claim(), LARGE)
    for response in (
        await waiting,
        await service.http.put(f"/v1/jobs/{own}", json={"model": "echo", "input": {"text": "hello"}}),
    ):
        assert (response.status_code, response.json()["output"]) == (200, None)
        assert (await service.http.get(response.json()["links"]["output"])).json() == WHOLE


async def test_the_client_returns_the_whole_output_of_each_job_but_of_a_list(service: Service, tmp_path: Path) -> None:
    async with client_of(service) as client:
        job = await client.submit("echo", {"text": "hello"}, idempotency_key="k")
        await service.end(await service.claim(), LARGE)
        again = await client.submit("echo", {"text": "hello"}, idempotency_key="k")
        for found in (again, await client.wait(job.id), await client.job(job.id), await client.cancel(job.id)):
            assert (found.text, found.data, found.raw["output"]) == ("hello", DATA, WHOLE)
        [listed] = (await client.jobs()).jobs
        assert (listed.data, listed.output_bytes) == (None, again.output_bytes)
        *_, notes = await client.download(listed, tmp_path)
        assert json.loads(notes.read_text())["output"] == WHOLE


async def test_the_command_line_shows_the_whole_output(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with facing(valkey.url, tmp_path / "data") as face:
        job = await face.service.submit()
        await face.service.end(await face.service.claim(), LARGE)
        shell = Shell({"PENSTOCK_URL": face.url})
        for words in (("status", job["id"]), ("wait", job["id"])):
            done = await shell(*words, "--json")
            assert (done.code, done.document()["output"]) == (0, WHOLE), done.err


async def test_a_large_output_survives_an_emptied_redis_and_goes_with_its_job(
    service: Service, valkey: ValkeyProcess
) -> None:
    job_id = await ended(service)
    before = await read(service, job_id)
    valkey.flush()
    store = JobStore.open(valkey.url)
    try:
        await asyncio.to_thread(recover, store, service.objects)
        after = await read(service, job_id)
        assert (after["output"], after["output_bytes"]) == (before["output"], before["output_bytes"])
        assert await redis_bytes(service, job_id) < FEW
        key, prefix = JobKey("default", job_id), f"tenants/default/jobs/{job_id}/"
        assert [info.key for info in service.objects.list(prefix) if "output" in info.key]
        assert await asyncio.to_thread(purge, store, service.objects, [key]) == ()
        assert list(service.objects.list(prefix)) == []
    finally:
        store.close()
    assert (await service.http.get(f"/v1/jobs/{job_id}/output")).status_code == 410


async def test_a_deleted_job_takes_its_large_output_with_it(either: Service) -> None:
    job_id = await ended(either)
    assert (await either.http.delete(f"/v1/jobs/{job_id}")).status_code == 204
    assert list(either.objects.list(f"tenants/default/jobs/{job_id}/")) == []


async def test_a_lost_or_damaged_output_is_an_error_and_no_empty_answer(service: Service) -> None:
    job_id = await ended(service)
    [stored] = [info.key for info in service.objects.list(f"tenants/default/jobs/{job_id}/attempts/")]
    service.objects.put_bytes(stored, b"{}", content_type="application/json")
    assert (await service.http.get(f"/v1/jobs/{job_id}")).json()["code"] == ObjectStoreUnavailable.code
    service.objects.delete(stored)
    assert (await service.http.get(f"/v1/jobs/{job_id}")).json()["code"] == JobGone.code
    assert (await service.http.get(f"/v1/jobs/{job_id}/output")).status_code == 404


async def test_embeddings_of_2000_texts_are_as_those_of_few(valkey: ValkeyProcess, tmp_path: Path) -> None:
    vectors = [[n / 7, n / 11, -n / 13] for n in range(2_000)]
    data = {"count": 2_000, "dimensions": 3, "embeddings": vectors, "truncated": [], "usage": {"prompt_tokens": 9}}
    async with facing(valkey.url, tmp_path) as face, face.client() as client:
        asked = asyncio.create_task(
            client.embeddings.create(model="embedder", input=["a"] * 2_000, encoding_format="float")
        )
        claim = await face.claim()
        await face.service.end(claim, Outcome(State.SUCCEEDED, data=data))
        answer = await asked
        assert [row.embedding for row in answer.data] == vectors
        assert answer.usage.prompt_tokens == 9
        assert await redis_bytes(face.service, claim.key.id) < 10 * FEW  # with the 2,000 texts of the request


async def test_responses_and_runpod_answer_with_a_stored_text(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with facing(valkey.url, tmp_path, inline_output_bytes=0) as face, face.client() as client:
        made = await client.responses.create(model="writer", input="Hello", background=True)
        await face.write(await face.claim(), "Good ", "day")
        for response in (await client.responses.retrieve(made.id), await client.responses.cancel(made.id)):
            assert (response.status, response.output_text) == ("completed", "Good day")
        streaming = asyncio.create_task(
            client.chat.completions.create(model="writer", messages=[{"role": "user", "content": "Hello"}], stream=True)
        )
        claim = await face.claim()
        await face.service.end(claim, Outcome(State.SUCCEEDED, text="Good day", data={"finish_reason": "stop"}))
        told = [chunk.choices[0].delta.content async for chunk in await streaming]
        assert "".join(filter(None, told)) == "Good day"

        http, place = face.service.http, "/runpod/v2/writer"
        run = (await http.post(f"{place}/run", json={"input": {"prompt": "Hello"}})).json()
        await face.service.end(await face.claim(), Outcome(State.SUCCEEDED, text="Hi", data={"n": 1}))
        assert (await http.get(f"{place}/status/{run['id']}")).json()["output"] == {"text": "Hi", "json": {"n": 1}}
        assert (await http.get(f"{place}/stream/{run['id']}")).json()["stream"] == [{"output": "Hi"}]


async def test_the_lines_of_a_batch_hold_the_whole_output(service: Service, keeper: KeeperMoves) -> None:
    batch = await submitted(service, requests=[line("one")])
    await keeper.expand()
    await service.end(await service.claim(), LARGE)
    await keeper.complete()
    [row] = await rows(service, batch["id"], "results")
    assert row["output"] == WHOLE


@contextmanager
def delivered(bench: Bench, input: dict[str, Any], **changes: Any) -> Iterator[dict[str, Any]]:  # noqa: A002
    """Run a job with a webhook and return the body of its end."""
    with receiving() as receiver:
        hook = Webhook(receiver.url, ("job.succeeded",))
        bench.submit("a", input, hook, **changes)
        assert bench.slots.work("default") == 1
        settings = Settings(allowed_hosts=(receiver.pair,))
        deliverer = Deliverer(
            bench.store, bench.objects, GuardedClient(settings), base_url="http://api",
            output_bytes=bench.settings.inline_output_bytes,
        )  # fmt: skip
        deliverer.deliver_due()
        _, body = receiver.got.get(timeout=30)
        deliverer.close()
        yield json.loads(body)


def test_a_webhook_carries_the_link_of_a_large_output(valkey: ValkeyProcess, tmp_path: Path) -> None:
    with open_bench(valkey.url, tmp_path) as bench, delivered(bench, {"text": bench.upload("x" * 50_000)}) as body:
        data = body["data"]
        assert (data["output"], data["output_bytes"]) == (None, 50_023)
        assert data["links"] == {"self": "http://api/v1/jobs/a", "output": "http://api/v1/jobs/a/output"}
        assert [each["name"] for each in data["artifacts"]] == ["echo.txt"]


def test_a_callback_of_ogc_has_a_small_stored_value(valkey: ValkeyProcess, tmp_path: Path) -> None:
    outputs = [{"name": "said", "media_type": "text/plain", "by_reference": False}]
    facade = {"ogc": {"response": "document", "outputs": [*outputs, {**outputs[0], "name": "none"}]}}
    with (
        open_bench(valkey.url, tmp_path, inline_output_bytes=0) as bench,
        delivered(bench, {"text": bench.upload("hi")}, facade=facade) as body,
    ):
        assert body["said"] == {"value": "hi", "mediaType": "text/plain"}


@pytest.fixture(params=["manifest", "redis"])
def bench(valkey: ValkeyProcess, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    with open_bench(valkey.url, tmp_path, inline_output_bytes=0, durability=request.param) as bench:
        yield bench


def job_of(bench: Bench, key: JobKey) -> Job:
    return bench.store.run(records.read(key))


def test_a_worker_stores_the_output_beside_the_artifacts(bench: Bench) -> None:
    key = bench.submit("a", {"text": bench.upload("hi")})
    assert bench.slots.work("default") == 1
    job = job_of(bench, key)
    assert (job.text, job.data, [each.name for each in job.artifacts]) == (None, None, ["echo.txt"])
    assert job.output is not None
    assert bench.artifacts(key) == [job.output.key, job.artifacts[0].key]
    assert bench.journal.run(journal.whole(job)).text == "hi"
    assert job.usage.bytes_out == 2


def test_a_worker_that_lost_its_lease_leaves_no_output(bench: Bench) -> None:
    key = bench.submit("a", {"text": bench.upload("hi")})
    bench.gate.shut()
    zombie = in_thread(lambda: bench.slots.work("default"))
    assert bench.gate.entered.wait(30)
    bench.store.client.zadd("penstock:leases", {str(key): 0})
    assert bench.journal.run(journal.sweep()).requeued == 1
    held = claim_one(bench.store, "default", slot="other", models=["echo"])
    output = store_output(bench.objects, held, "elsewhere", None, inline_bytes=0)
    bench.journal.run(journal.complete(held, Outcome(State.SUCCEEDED, text="elsewhere", output=output)))
    bench.gate.opened.set()
    zombie.join(60)
    assert not zombie.is_alive()
    assert output is not None
    assert bench.artifacts(key) == [output.key]
    assert bench.journal.run(journal.whole(job_of(bench, key))).text == "elsewhere"


def test_a_canceled_job_has_no_output(bench: Bench) -> None:
    key = bench.submit("a", {"text": bench.upload("hi")})
    held = claim_one(bench.store, "default", models=["echo"])
    output = store_output(bench.objects, held, "hi", None, inline_bytes=0)
    bench.journal.run(journal.cancel(key))
    ended = bench.journal.run(journal.complete(held, Outcome(State.SUCCEEDED, text="hi", output=output)))
    job = job_of(bench, key)
    assert (ended.visible, job.state, job.output, job.text) == (False, State.CANCELED, None, None)


def test_the_marker_of_a_dropped_object_holds_the_whole_json(valkey: ValkeyProcess, tmp_path: Path) -> None:
    (tmp_path / "bucket" / "in").mkdir(parents=True)
    with open_bench(valkey.url, tmp_path, drops=(rule(tmp_path),)) as bench:
        [drop] = open_drops(bench.settings, bench.store, bench.objects)
        (tmp_path / "bucket" / "in" / "a.txt").write_text("hi")
        drop.step()
        drop.step()
        held = claim_one(bench.store, "default", models=["echo"])
        output = store_output(bench.objects, held, None, DATA, inline_bytes=32_768)
        bench.journal.run(journal.complete(held, Outcome(State.SUCCEEDED, data=DATA, output=output)))
        [listed] = bench.store.run(listing.list_jobs("default")).jobs
        assert listed.data is None
        drop.step()
        assert json.loads((tmp_path / "bucket" / "out" / "a.txt.done.json").read_text())["data"] == DATA
