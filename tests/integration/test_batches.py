"""Batches over the API on real stores: input, expansion into jobs as there is room, and results."""

from __future__ import annotations

import asyncio
import base64
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from penstock.api.admission.concurrency import MAX_CONCURRENT_BATCHES
from penstock.batches import BatchKey
from penstock.storage.objects.base import ObjectInfo
from penstock.storage.objects.local import LocalStore
from penstock.storage.redis import batches, catalogues, records
from penstock.workers.keeper.batch_expansion import WindowSubmission, read_window
from tests.support.batch_keeper import KeeperMoves, jsonl, line, parts, read, rows, submitted, upload, work
from tests.support.service import Service, assert_problem, serving
from tests.support.valkey import ValkeyProcess


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


async def test_a_member_knows_the_bytes_of_its_media(service: Service, keeper: KeeperMoves) -> None:
    media = await upload(service, b"0123456789")
    batch = await submitted(service, requests=[line("a"), {"input": {"text": "b", "scene": media}}], model="echo")
    await keeper.expand()
    jobs = [await service.jobs.run(records.read(BatchKey("default", batch["id"]).member(n))) for n in (1, 2)]
    assert [job.submission.media_bytes for job in jobs] == [None, 10]


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
        (12, None, "invalid_request"), (13, None, "payload_too_large"), (14, None, "malformed_body"),
    ]  # fmt: skip
    assert "not UTF-8" in errors[-1]["error"]["detail"]
    assert errors[2]["error"]["errors"] == [{"pointer": "/nonsense", "detail": "is not known"}]
    assert {row["job_id"] for row in errors} == {None}


@pytest.mark.breadth(but=(r"hello\nworld\n-no line",))
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


async def test_a_batch_of_too_many_lines_is_refused_and_leaves_nothing(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, max_batch_lines=2) as service:
        file = await upload(service, jsonl([line("a"), line("b"), line("c")]))
        problem = assert_problem(await service.http.post("/v1/batches", json={"file": file}), 422, "media_too_large")
        assert (problem["errors"][0]["pointer"], "2 lines" in problem["detail"]) == ("/file", True)
        assert list(service.objects.list("tenants/default/batches/")) == []
        assert (await service.http.get("/v1/batches")).json()["batches"] == []
        two = await upload(service, jsonl([line("a"), line("b")]))
        assert (await submitted(service, file=two))["counts"]["total"] == 2


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
    for _ in range(MAX_CONCURRENT_BATCHES):
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


async def test_images_inside_a_line_become_uploads_of_its_job(service: Service, keeper: KeeperMoves) -> None:
    image = base64.b64encode(b"\x89PNG and the rest").decode()
    url = f"data:image/png;base64,{image}"
    wrong = ["data:image/png;base64", "data:image/png;base64,!!!", "data:image/png;base64,"]
    batch = await submitted(
        service, model="echo",
        requests=[
            {"input": {"text": "a", "scene": url, "more": [{"file": url}]}},
            *({"input": {"text": "b", "scene": one}} for one in wrong),
        ],
    )  # fmt: skip
    await keeper.expand()
    [claim] = await service.claims()
    scene = claim.submission.input["scene"]
    assert claim.submission.input == {"text": "a", "scene": scene, "more": [{"file": scene}]}
    [upload_key] = [info.key for info in service.objects.list("tenants/default/uploads/")]
    assert upload_key == f"tenants/default/uploads/{scene.removeprefix('media://')}"
    assert b"".join(service.objects.read(upload_key)) == b"\x89PNG and the rest"
    await service.succeed(claim, "A")
    await keeper.complete()
    errors = await rows(service, batch["id"], "errors")
    assert [(row["line"], row["status"], row["error"]["errors"][0]["pointer"]) for row in errors] == [
        (n, "invalid", "/input/scene") for n in (2, 3, 4)
    ]


async def test_an_image_inside_a_line_needs_room_in_the_quota_once(valkey: ValkeyProcess, tmp_path: Path) -> None:
    url = f"data:image/png;base64,{base64.b64encode(b'four').decode()}"
    async with serving(valkey.url, tmp_path, max_tenant_kept_bytes=7) as service:
        moves = KeeperMoves(service)
        try:
            lines = [{"input": {"text": text, "scene": url}} for text in "ab"]
            batch = await submitted(service, model="echo", requests=lines[:1])
            key = BatchKey("default", batch["id"])
            manifest = moves.store.run(batches.read(key))
            window = read_window(service.objects, manifest, 1000)
            catalogue = moves.store.run(catalogues.known()).entries
            found = [
                WindowSubmission(moves.expansion, manifest, catalogue, threading.Event()).submit(window[0])
                for _ in range(2)
            ]
            assert [outcome and outcome.invalid for outcome in found] == [None, None]
            other = await submitted(service, model="echo", requests=lines[1:])
            await moves.expand()
            await service.claims()
            assert (await read(service, other["id"]))["counts"]["invalid"] == 1
            assert len(list(service.objects.list("tenants/default/uploads/"))) == 1
        finally:
            moves.close()
