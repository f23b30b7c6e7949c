"""Batches over the API on real stores, with a keeper's and a worker's moves at hand."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.api.turns import BATCHES_AT_ONCE
from penstock.batches import BatchKey
from penstock.errors import InvalidInput
from penstock.jobs import State
from penstock.storage import batch_journal, batches, catalogues, journal, records
from penstock.storage.base import ObjectInfo
from penstock.storage.journal import Journal
from penstock.storage.local import LocalStore
from penstock.storage.records import Outcome
from penstock.workers.completion import retire_batches
from penstock.workers.recover import recover, recover_if_emptied
from penstock.workers.tidy import tidy
from tests.integration.batching import KeeperMoves, jsonl, line, read, rows, submitted, upload, work
from tests.integration.service import BROKEN, ECHO, Service, assert_problem, serving
from tests.valkey import ValkeyProcess

FAILED = Outcome(State.FAILED, error=InvalidInput("bad").report())


@pytest.fixture
async def keeper(service: Service) -> AsyncIterator[KeeperMoves]:
    moves = KeeperMoves(service)
    yield moves
    moves.close()


def parts(batch: dict[str, Any]) -> dict[str, int]:
    """The counts that are not 0."""
    return {name: count for name, count in batch["counts"].items() if count}


async def test_an_array_of_requests_runs_as_jobs_and_ends_in_results(service: Service, keeper: KeeperMoves) -> None:
    batch = await submitted(
        service, requests=[line("a", custom_id="first"), {"input": {"text": "b"}}], model="parrot",
        metadata={"why": "test"},
    )  # fmt: skip
    assert (batch["status"], parts(batch), batch["artifacts"]) == ("running", {"total": 2, "queued": 2}, [])
    await keeper.expand()
    jobs = (await service.http.get("/v1/jobs", params={"batch_id": batch["id"]})).json()["jobs"]
    assert {(job["batch_id"], job["batch_line"], job["custom_id"], job["priority"]) for job in jobs} == {
        (batch["id"], 1, "first", "low"), (batch["id"], 2, None, "low")
    }  # fmt: skip
    await service.submit()  # another job is no member
    assert len((await service.http.get("/v1/jobs", params={"batch_id": batch["id"]})).json()["jobs"]) == 2
    assert (await service.http.get("/v1/jobs", params={"batch_id": str(uuid.uuid4())})).json()["jobs"] == []
    claims = [claim for claim in await service.claims() if claim.submission.batch_id]
    assert parts(await read(service, batch["id"])) == {"total": 2, "running": 2}
    first = next(claim for claim in claims if claim.submission.batch_line == 1)
    artifact = service.store_artifact(first, "map.txt", b"a map", "text/plain")
    await service.succeed(first, "A", (artifact,))
    await service.succeed(next(claim for claim in claims if claim is not first), "B")
    await keeper.complete()

    ended = await read(service, batch["id"])
    assert (ended["status"], parts(ended), ended["metadata"]) == (
        "completed", {"total": 2, "succeeded": 2}, {"why": "test"},
    )  # fmt: skip
    assert ended["completed_at"] < ended["expires_at"]
    names = [f"artifact://{batch['id']}/{name}.jsonl" for name in ("results", "errors")]
    assert [artifact["uri"] for artifact in ended["artifacts"]] == names
    results = await rows(service, batch["id"], "results")
    assert [(row["line"], row["custom_id"], row["status"], row["output"]) for row in results] == [
        (1, "first", "succeeded", {"text": "A", "json": {"n": 1}}),
        (2, None, "succeeded", {"text": "B", "json": {"n": 1}}),
    ]
    assert [row["job_id"] for row in results] == [BatchKey("default", batch["id"]).member(n).id for n in (1, 2)]
    file = results[0]["artifacts"][0]
    assert (file["name"], file["sha256"]) == ("map.txt", artifact.sha256)
    assert (await service.http.get(file["url"])).content == b"a map"
    assert await rows(service, batch["id"], "errors") == []


async def test_a_bad_line_is_an_error_line_and_not_the_batches_failure(service: Service, keeper: KeeperMoves) -> None:
    missing = "media://018f0000/none.tif"
    data = jsonl([
        line("good", custom_id="g"), b"{not json", b"", b"[1]", line("x", custom_id="deep", nonsense=1),
        {"input": {"text": "no model"}}, line("y", model="nobody"), line("z", model="broken"),
        {"model": "echo", "input": {"count": 0}}, line("m", input={"text": "m", "scene": missing}),
        line("w", webhook={"url": "ftp://files.test/hook"}), b"\xef\xbb\xbf{}", line("l" * 1_000_100, custom_id="long"),
        b'{"model": "echo", "input": {"text": "\xff"}}', line("last"),
    ])  # fmt: skip
    batch = await submitted(service, file=await upload(service, data))
    assert batch["counts"]["total"] == 14
    await keeper.expand()
    assert parts(await read(service, batch["id"])) == {"total": 14, "queued": 2, "invalid": 12}
    assert await work(service) == 2
    await keeper.complete()

    ended = await read(service, batch["id"])
    assert (ended["status"], parts(ended)) == ("completed", {"total": 14, "succeeded": 2, "invalid": 12})
    assert [row["line"] for row in await rows(service, batch["id"], "results")] == [1, 15]
    errors = await rows(service, batch["id"], "errors")
    assert {row["status"] for row in errors} == {"invalid"}
    assert [(row["line"], row["custom_id"], row["error"]["code"]) for row in errors] == [
        (2, None, "malformed_body"), (4, None, "invalid_request"), (5, "deep", "invalid_request"),
        (6, None, "invalid_request"), (7, None, "unknown_model"), (8, None, "model_unavailable"),
        (9, None, "invalid_request"), (10, None, "media_not_found"), (11, None, "invalid_request"),
        (12, None, "malformed_body"), (13, None, "payload_too_large"), (14, None, "malformed_body"),
    ]  # fmt: skip
    assert "not UTF-8" in errors[-1]["error"]["detail"]
    assert errors[2]["error"]["errors"] == [{"pointer": "/nonsense", "detail": "is not known"}]
    assert {row["job_id"] for row in errors} == {None}


@pytest.mark.parametrize(
    ("data", "detail"),
    [(b"\xff\xfe\x00{", "not UTF-8"), (b"hello\nworld\n", "no line"), (b"\n \n", "no lines"), (b"[1]\n2\n", "no line")],
)
async def test_a_file_that_is_no_jsonl_is_refused(service: Service, data: bytes, detail: str) -> None:
    response = await service.http.post("/v1/batches", json={"file": await upload(service, data)})
    problem = assert_problem(response, 422, "invalid_request")
    assert detail in problem["detail"]
    assert problem["errors"][0]["pointer"] == "/file"
    assert (await service.http.get("/v1/batches")).json()["batches"] == []


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "invalid_request"),
        ({"requests": [], "model": "echo"}, "invalid_request"),
        ({"requests": [{}], "file": "media://a/b"}, "invalid_request"),
        ({"requests": [{}], "ttl": 0}, "invalid_request"),
        ({"requests": [{"input": {"text": "a"}}, {"input": {"text": "b"}}]}, "invalid_request"),
        ({"requests": [{}], "model": "nobody"}, "unknown_model"),
        ({"file": "media://018f0000/none.jsonl"}, "media_not_found"),
        ({"file": "https://files.test:80/a.jsonl"}, "media_refused"),
        ({"file": "s3://somebodys/a.jsonl"}, "media_refused"),
    ],
)
async def test_a_batch_that_cannot_begin_is_refused(service: Service, body: dict[str, Any], code: str) -> None:
    assert_problem(await service.http.post("/v1/batches", json=body), 422, code)
    assert list(service.objects.list("tenants/default/batches/")) == []


async def test_a_file_of_which_no_line_names_a_model_is_refused_where_the_batch_names_none(service: Service) -> None:
    unnamed = {"input": {"text": "a"}}
    reference = await upload(service, jsonl([unnamed, b"[1]", b"{not json", unnamed]))
    response = await service.http.post("/v1/batches", json={"file": reference})
    problem = assert_problem(response, 422, "invalid_request")
    assert "no request of the batch names a model" in problem["detail"]
    assert problem["errors"] == [{"pointer": "/model", "detail": "is missing"}]
    assert (await submitted(service, file=reference, model="echo"))["counts"]["total"] == 4
    assert (await service.http.get("/v1/batches")).json()["batches"][1:] == []
    named = await upload(service, jsonl([unnamed, b'{"mod\\u0065l": "echo", "input": {"text": "b"}}']))
    assert (await submitted(service, file=named))["counts"]["total"] == 2


async def test_a_flood_of_batches_leaves_threads_to_everybody_else(service: Service) -> None:
    loop, taken, may_go_on = asyncio.get_running_loop(), asyncio.Semaphore(0), threading.Event()

    class Slow(LocalStore):
        """Stores no batch's requests before it may."""

        def put_file(self, key: str, path: Path, **options: Any) -> ObjectInfo:
            loop.call_soon_threadsafe(taken.release)
            may_go_on.wait(60)
            return super().put_file(key, path, **options)

    assert isinstance(service.objects, LocalStore)
    service.swap(objects=Slow(service.objects.root))
    flood = asyncio.gather(*(submitted(service, requests=[line("a")]) for _ in range(40)))
    for _ in range(BATCHES_AT_ONCE):
        await taken.acquire()
    try:
        assert (await service.http.get("/readyz")).status_code == 200
    finally:
        may_go_on.set()
    assert len({batch["id"] for batch in await flood}) == 40


async def test_one_idempotency_key_is_one_batch(service: Service, keeper: KeeperMoves) -> None:
    body, headers = {"requests": [line("a")], "model": "echo"}, {"Idempotency-Key": "k"}
    answers = await asyncio.gather(*(service.http.post("/v1/batches", json=body, headers=headers) for _ in range(8)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1
    again = await service.http.post("/v1/batches", json=body, headers=headers)
    assert again.headers["idempotency-replayed"] == "true"
    other = await service.http.post("/v1/batches", json={**body, "ttl": 5.0}, headers=headers)
    assert_problem(other, 422, "idempotency_mismatch")
    await keeper.expand()
    assert len((await service.http.get("/v1/jobs")).json()["jobs"]) == 1


async def test_a_batch_waits_for_room_and_leaves_some(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, max_queued=20, max_tenant_jobs=30) as service:
        keeper = KeeperMoves(service)
        batch = await submitted(service, requests=[line(str(n)) for n in range(50)])
        seen = []
        while (found := await read(service, batch["id"]))["counts"]["succeeded"] < 50:
            await keeper.expand()
            waiting = (await service.http.get("/v1/queues/default")).json()["queued"]
            seen.append(waiting)
            await service.submit()  # there is room for a job that comes alone
            await work(service)
        assert max(seen) == 10  # half of the queue's limit
        assert found["expanded"] == 50
        await keeper.complete()
        results = await rows(service, batch["id"], "results")
        assert [row["output"]["text"] for row in results] == [str(n) for n in range(50)]
        keeper.close()


async def test_a_batch_leaves_room_in_its_tenants_own_limit(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, tenants={"default": {"max_jobs": 6}}) as service:
        keeper = KeeperMoves(service)
        batch = await submitted(service, requests=[line(str(n)) for n in range(10)])
        await keeper.expand()
        jobs = (await service.http.get("/v1/jobs", params={"batch_id": batch["id"]})).json()["jobs"]
        assert len(jobs) == 3  # half of the tenant's limit
        await service.submit()  # there is room for a job that comes alone
        keeper.close()


async def test_a_line_may_be_as_long_as_its_tenants_requests(valkey: ValkeyProcess, tmp_path: Path) -> None:
    tenants = {"default": {"max_body_bytes": 1000}}
    async with serving(valkey.url, tmp_path, max_body_bytes=300, tenants=tenants) as service:
        keeper = KeeperMoves(service)
        data = jsonl([line("x" * 600), line("x" * 1200), b" " * 600, line("short")])
        batch = await submitted(service, file=await upload(service, data))
        await keeper.expand()
        assert await work(service) == 2
        await keeper.complete()
        ended = await read(service, batch["id"])
        assert (ended["status"], parts(ended)) == ("completed", {"total": 3, "succeeded": 2, "invalid": 1})
        keeper.close()


async def test_a_cancel_keeps_what_succeeded_before(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, max_queued=20) as service:
        keeper = KeeperMoves(service)
        batch = await submitted(service, requests=[line(str(n)) for n in range(30)])
        await keeper.expand()  # 10 jobs; the others never become any
        claims = await service.claims(3)
        await service.succeed(claims[0], "early")
        await service.end(claims[1], FAILED)
        canceled = await service.http.post(f"/v1/batches/{batch['id']}/cancel")
        assert (canceled.status_code, canceled.json()["status"]) == (202, "canceling")
        await keeper.complete()
        assert (await read(service, batch["id"]))["status"] == "canceling"  # one still runs
        await keeper.expand()
        await service.end(claims[2], Outcome(State.CANCELED))
        await keeper.complete()

        ended = await read(service, batch["id"])
        assert (ended["status"], parts(ended)) == (
            "canceled", {"total": 30, "succeeded": 1, "failed": 1, "canceled": 28},
        )  # fmt: skip
        assert [row["output"]["text"] for row in await rows(service, batch["id"], "results")] == ["early"]
        errors = await rows(service, batch["id"], "errors")
        assert len(errors) == 29
        assert sum(row["job_id"] is not None for row in errors) == 9  # the others never were jobs
        assert (await service.http.post(f"/v1/batches/{batch['id']}/cancel")).status_code == 200
        assert (await service.http.get("/v1/queues/default")).json()["queued"] == 0
        keeper.close()


async def test_a_batch_whose_time_is_over_ends_with_what_it_has(service: Service, keeper: KeeperMoves) -> None:
    batch = await submitted(service, requests=[line(str(n)) for n in range(6)], ttl=3600.0)
    key = BatchKey("default", batch["id"])
    await keeper.expand()
    claims = await service.claims(2)
    await service.succeed(claims[0], "in time")
    await keeper.pass_deadline(key)
    await keeper.complete()
    assert parts(await read(service, batch["id"])) == {"total": 6, "succeeded": 1, "running": 1, "expired": 4}
    await service.end(claims[1], Outcome(State.CANCELED))
    await keeper.complete()

    ended = await read(service, batch["id"])
    assert (ended["status"], parts(ended)) == ("expired", {"total": 6, "succeeded": 1, "canceled": 1, "expired": 4})
    assert [row["output"]["text"] for row in await rows(service, batch["id"], "results")] == ["in time"]
    codes = {row["error"]["code"] for row in await rows(service, batch["id"], "errors")}
    assert codes == {"queue_expired", "canceled"}


async def test_members_wait_no_longer_than_their_batch(service: Service, keeper: KeeperMoves) -> None:
    batch = await submitted(service, requests=[line("a", queue_ttl=9999.0), line("b", queue_ttl=5.0)], ttl=100.0)
    await keeper.expand()
    for n, most in ((1, 100), (2, 5)):
        job = keeper.store.run(records.read(BatchKey("default", batch["id"]).member(n)))
        assert 0 < job.submission.queue_ttl_s <= most


async def test_batches_outlive_an_emptied_redis(service: Service, keeper: KeeperMoves, valkey: ValkeyProcess) -> None:
    running = await submitted(service, requests=[line("a"), {"input": {}}, line("b")])
    await keeper.expand()
    await service.succeed(await service.claim(), "A")
    over = await submitted(service, requests=[line("c")])
    await keeper.expand()
    await work_only(service, over["id"])
    await keeper.complete()
    canceled = await submitted(service, requests=[line("d")])
    await service.http.post(f"/v1/batches/{canceled['id']}/cancel")
    before = await read(service, over["id"])
    await forget_all(service, valkey)

    assert (await read(service, over["id"])) == before
    assert (await read(service, canceled["id"]))["status"] == "canceling"
    # Even before the members are made anew, a batch does not take them for lost.
    await read(service, running["id"])
    await keeper.complete()
    assert (await read(service, running["id"]))["status"] == "running"
    await asyncio.to_thread(recover, keeper.store, service.objects)
    await keeper.expand()
    assert parts(await read(service, running["id"])) == {"total": 3, "succeeded": 1, "queued": 1, "invalid": 1}
    assert await work(service) == 1
    await keeper.complete()
    ended = await read(service, running["id"])
    assert (ended["status"], parts(ended)) == ("completed", {"total": 3, "succeeded": 2, "invalid": 1})
    listed = (await service.http.get("/v1/batches")).json()["batches"]
    assert [(b["id"], b["status"]) for b in listed] == [
        (canceled["id"], "canceled"), (over["id"], "completed"), (running["id"], "completed"),
    ]  # fmt: skip


async def test_a_batch_goes_with_its_jobs(service: Service, keeper: KeeperMoves) -> None:
    batch = await submitted(service, requests=[line("a"), line("b")])
    await keeper.expand()
    first = await service.http.delete(f"/v1/batches/{batch['id']}")
    assert (first.status_code, first.json()["status"]) == (202, "canceling")
    await keeper.complete()

    for path in ("", "/artifacts/results.jsonl"):
        assert_problem(await service.http.get(f"/v1/batches/{batch['id']}{path}"), 410, "batch_gone")
    assert (await service.http.get("/v1/batches")).json()["batches"] == []
    await asyncio.to_thread(recover_if_emptied, keeper.store, service.objects)
    await asyncio.to_thread(retire_batches, keeper.store, service.objects)
    assert list(service.objects.list("tenants/default/batches/")) == []
    assert list(service.objects.list("tenants/default/jobs/")) == []
    assert_problem(await service.http.get(f"/v1/batches/{batch['id']}"), 410, "batch_gone")
    assert (await service.http.delete(f"/v1/batches/{batch['id']}")).status_code == 204
    job = BatchKey("default", batch["id"]).member(1)
    assert_problem(await service.http.get(f"/v1/jobs/{job.id}"), 410, "job_gone")
    keys = {str(k) for k in await service.jobs.client.keys("*") if batch["id"] in str(k)}
    assert keys == {f"penstock:tenant:default:batchgone:{batch['id']}"}


async def test_a_batch_is_gone_after_its_retention_and_its_jobs_not_before(
    valkey: ValkeyProcess, tmp_path: Path
) -> None:
    async with serving(valkey.url, tmp_path, retention_s=1) as service:
        keeper = KeeperMoves(service)
        batch = await submitted(service, requests=[line("a")], ttl=50.0)
        await keeper.expand()
        await work(service)
        await keeper.complete()
        job = keeper.store.run(records.read(BatchKey("default", batch["id"]).member(1)))
        ended = keeper.store.run(batches.read(BatchKey("default", batch["id"])))
        assert job.expires_s is not None
        assert ended.expires_s is not None
        assert job.expires_s > ended.expires_s
        keeper.close()


async def test_a_deleted_member_has_its_line_all_the_same(service: Service, keeper: KeeperMoves) -> None:
    batch = await submitted(service, requests=[line("a", custom_id="a"), line("b", custom_id="b")])
    await keeper.expand()
    await work(service)
    gone = BatchKey("default", batch["id"]).member(1)
    assert (await service.http.delete(f"/v1/jobs/{gone.id}")).status_code == 204
    await keeper.complete()
    ended = await read(service, batch["id"])
    assert parts(ended) == {"total": 2, "succeeded": 1, "canceled": 1}
    [error] = await rows(service, batch["id"], "errors")
    assert (error["line"], error["custom_id"], error["error"]["detail"]) == (1, "a", "the job was deleted")


async def test_a_retry_of_a_member_is_no_member(service: Service, keeper: KeeperMoves) -> None:
    batch = await submitted(service, requests=[line("a")])
    await keeper.expand()
    await service.end(await service.claim(), FAILED)
    await keeper.complete()
    job = BatchKey("default", batch["id"]).member(1)
    retried = (await service.http.post(f"/v1/jobs/{job.id}/retry")).json()
    assert (retried["batch_id"], retried["batch_line"], retried["retry_of"]) == (None, None, job.id)
    assert parts(await read(service, batch["id"])) == {"total": 1, "failed": 1}


async def test_a_closed_batch_gets_no_member_from_a_keeper_that_was_asleep(
    service: Service, keeper: KeeperMoves
) -> None:
    batch = await submitted(service, requests=[line("a"), line("b")])
    key = BatchKey("default", batch["id"])
    asleep = keeper.store.run(batches.read(key))  # what another keeper knew before
    await service.http.post(f"/v1/batches/{batch['id']}/cancel")
    await keeper.complete()
    with ThreadPoolExecutor(2) as pool:
        await asyncio.to_thread(keeper.expansion._window, asleep, pool)
    assert (await service.http.get("/v1/jobs")).json()["jobs"] == []
    assert parts(await read(service, batch["id"])) == {"total": 2, "canceled": 2}


async def test_every_step_of_an_expansion_may_be_the_last(service: Service, keeper: KeeperMoves) -> None:
    """A keeper that dies anywhere in a window is followed by another one: no line twice, none left out."""
    batch = await submitted(service, requests=[line(str(n)) if n % 3 else {"input": {}} for n in range(12)])
    key = BatchKey("default", batch["id"])

    class Dies(Exception):
        pass

    class Fragile:
        """The store of a keeper that lives for so many commands."""

        def __init__(self, life: int) -> None:
            self.life = life

        def run(self, command: records.Command[Any]) -> Any:
            self.life -= 1
            if self.life < 0:
                raise Dies
            return keeper.store.run(command)

    for life in range(60):
        dying = replace(keeper.expansion, store=Fragile(life))
        with ThreadPoolExecutor(3) as pool:
            try:
                await asyncio.to_thread(dying.advance, key, pool)
            except Dies:
                await asyncio.to_thread(settle, keeper)
    found = await read(service, batch["id"])
    assert (found["expanded"], parts(found)) == (12, {"total": 12, "queued": 8, "invalid": 4})
    assert await work(service) == 8
    await keeper.complete()
    results, errors = await rows(service, batch["id"], "results"), await rows(service, batch["id"], "errors")
    assert sorted(row["line"] for row in results + errors) == list(range(1, 13))
    assert [row["output"]["text"] for row in results] == [str(n) for n in range(12) if n % 3]


async def test_two_keepers_end_a_batch_once(service: Service, keeper: KeeperMoves) -> None:
    batch = await submitted(service, requests=[line(str(n)) for n in range(40)])
    await keeper.expand()
    await work(service)
    others = [KeeperMoves(service) for _ in range(3)]
    await asyncio.gather(*(other.complete() for other in [keeper, *others]))
    ended = await read(service, batch["id"])
    kept = [info.key for info in service.objects.list(f"tenants/default/batches/{batch['id']}/ends/")]
    assert len(kept) == 2
    assert len(await rows(service, batch["id"], "results")) == 40
    assert ended["status"] == "completed"
    for other in others:
        other.close()


async def test_waiting_for_a_batch_ends_with_it(service: Service, keeper: KeeperMoves) -> None:
    batch = await submitted(service, requests=[line("a")])
    waiting = asyncio.create_task(service.http.get(f"/v1/batches/{batch['id']}", params={"wait": 50}))
    await keeper.expand()
    await work(service)
    await keeper.complete()
    assert (await waiting).json()["status"] == "completed"


async def test_a_deleted_batch_goes_with_all_its_jobs_although_redis_was_emptied(
    service: Service, keeper: KeeperMoves, valkey: ValkeyProcess
) -> None:
    batch = await submitted(service, requests=[line("a"), line("b")])
    await keeper.expand()
    await work(service)
    await keeper.complete()
    assert (await service.http.delete(f"/v1/batches/{batch['id']}")).status_code == 204
    await forget_all(service, valkey)
    key = BatchKey("default", batch["id"])
    Journal(keeper.store, service.objects).run(batch_journal.revive(key))  # its jobs have not had their turn
    await asyncio.to_thread(retire_batches, keeper.store, service.objects)
    await asyncio.to_thread(recover_if_emptied, keeper.store, service.objects)
    await asyncio.to_thread(retire_batches, keeper.store, service.objects)
    assert list(service.objects.list("tenants/default/jobs/")) == []
    assert (await service.http.get("/v1/jobs")).json()["jobs"] == []


async def test_batches_are_listed_page_by_page(service: Service) -> None:
    made = [(await submitted(service, requests=[line("a")]))["id"] for _ in range(5)]
    found, cursor = [], None
    while True:
        query = {"limit": "2"} | ({"cursor": cursor} if cursor else {})
        page = (await service.http.get("/v1/batches", params=query)).json()
        found += [batch["id"] for batch in page["batches"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert found == made[::-1]
    assert_problem(await service.http.get("/v1/batches", params={"nonsense": 1}), 422, "invalid_request")
    # Digits, but not those that Redis reads.
    assert_problem(await service.http.get("/v1/batches", params={"cursor": "\u0661\u0662"}), 422, "invalid_request")
    assert_problem(await service.http.get(f"/v1/batches/{uuid.uuid4()}"), 404, "unknown_batch")
    assert_problem(await service.http.get("/v1/batches/x"), 404, "unknown_batch")


async def test_lines_that_no_batch_was_made_of_are_tidied(service: Service, keeper: KeeperMoves) -> None:
    kept = await submitted(service, requests=[line("a")])
    orphan = BatchKey("default", str(uuid.uuid4()))
    service.objects.put_bytes(f"{orphan.prefix}lines/ff.jsonl", b"{}\n", content_type="application/jsonl")
    tidied = await asyncio.to_thread(tidy, keeper.store, service.objects, service.settings, at=time.time() + 90_000)
    assert tidied.batches == 1
    left = {info.key.split("/")[3] for info in service.objects.list("tenants/default/batches/")}
    assert left == {kept["id"]}


def settle(keeper: KeeperMoves) -> None:
    """Do what the keeper does for reservations that were left alone."""
    desk = Journal(keeper.store, keeper.service.objects)
    for key in keeper.store.run(records.reservations(0)):
        desk.run(journal.settle_reservation(key))


async def work_only(service: Service, batch_id: str) -> None:
    """Let the members of one batch succeed, and give the others back."""
    for claim in await service.claims():
        if claim.submission.batch_id == batch_id:
            await service.succeed(claim)
        else:
            await service.jobs.run(records.release(claim))


async def forget_all(service: Service, valkey: ValkeyProcess) -> None:
    """Empty Redis, and let the worker publish its models again."""
    valkey.flush()
    await service.jobs.run(catalogues.publish([ECHO, BROKEN], worker="w", queues=["default"], alive_s=600))
