"""The whole way of a job on a real S3 server: upload by link, run, artifact by link, and drop-in from a bucket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr

from penstock.config_tables import S3, DropRule
from penstock.jobs import JobKey, State
from penstock.storage.objects.opening import open_store
from penstock.storage.redis import catalogues, listing, records
from penstock.workers.keeper.drops import DONE, Drop, open_drops
from tests.support.ceph import Ceph
from tests.support.echo_processor import Bench, open_bench
from tests.support.service import MAX_SCENE_BYTES, serving
from tests.support.valkey import ValkeyProcess


@pytest.fixture
def options(ceph: Ceph) -> dict[str, Any]:
    """Settings with the service's own bucket and a bucket that is watched, both new."""
    bucket = ceph.bucket()
    rule = DropRule(
        name="inbox", bucket=f"s3://{ceph.bucket()}", prefix="in/", suffixes=(".txt",), model="echo", field="text",
        output_prefix="out/",
    )  # fmt: skip
    return {"object_store": f"s3://{bucket}", "s3": ceph.s3, "drops": (rule,)}


@pytest.fixture
def bench(valkey: ValkeyProcess, tmp_path: Path, options: dict[str, Any]) -> Iterator[Bench]:
    with open_bench(valkey.url, tmp_path, **options) as bench:
        yield bench


@pytest.fixture
def drop(bench: Bench) -> Drop:
    [drop] = open_drops(bench.settings, bench.store, bench.objects)
    return drop


async def test_bytes_go_to_and_come_from_the_store_by_links(
    bench: Bench, valkey: ValkeyProcess, tmp_path: Path, options: dict[str, Any]
) -> None:
    async with serving(valkey.url, tmp_path / "api", **options) as service, httpx2.AsyncClient() as web:
        wanted = {"filename": "a.txt", "content_type": "text/plain", "size_bytes": 2}
        upload = (await service.http.post("/v1/uploads", json=wanted)).json()
        assert upload["url"].startswith(options["s3"].endpoint_url)
        sent = await web.request(upload["method"], upload["url"], headers=upload["headers"], content=b"hi")
        assert sent.status_code == 200
        await service.jobs.run(catalogues.publish([bench.entry], worker="w", queues=["default"], alive_s=600))
        job = (await service.http.post("/v1/jobs", json={"model": "echo", "input": {"text": upload["media"]}})).json()
        assert await asyncio.to_thread(bench.slots.work, "default") == 1
        done = (await service.http.get(f"/v1/jobs/{job['id']}")).json()
        assert (done["status"], done["output"]["text"]) == ("succeeded", "hi")
        [artifact] = done["artifacts"]
        assert artifact["uri"].startswith(f"{options['object_store']}/tenants/default/jobs/{job['id']}/")
        link = await service.http.get(artifact["url"])
        assert link.status_code == 302
        body = (await web.get(link.headers["location"])).content
        assert sha256(body).hexdigest() == artifact["sha256"]


async def test_objects_that_a_job_names_are_looked_for_before_it_is_accepted(
    ceph: Ceph, valkey: ValkeyProcess, tmp_path: Path, options: dict[str, Any]
) -> None:
    bucket = ceph.bucket()
    async with serving(valkey.url, tmp_path, **options, s3_input_buckets=(bucket,)) as service:
        objects = open_store(f"s3://{bucket}", service.settings)
        small = objects.put_bytes("small.tif", b"x", content_type="image/tiff")
        objects.put_bytes("large.tif", b"x" * (MAX_SCENE_BYTES + 1), content_type="image/tiff")
        codes = {}
        for name in ("small.tif", f"small.tif#etag={small.etag}", "small.tif#etag=other", "large.tif", "none.tif"):
            wanted = {"model": "echo", "input": {"text": "a", "scene": f"s3://{bucket}/{name}"}}
            answer = await service.http.post("/v1/jobs", json=wanted)
            codes[name] = (answer.status_code, answer.json().get("code"))
            assert all(issue["pointer"] == "/input/scene" for issue in answer.json().get("errors", ()))
    assert list(codes.values()) == [
        (202, None), (202, None), (422, "media_changed"), (422, "media_too_large"), (422, "media_not_found")
    ]  # fmt: skip


def test_an_object_becomes_a_job_and_its_result_lies_in_the_bucket(bench: Bench, drop: Drop) -> None:
    drop.bucket.put_bytes("in/ä b+c%2Fd.txt", b"hi", content_type="text/plain")
    assert drop.step() == 1
    assert bench.slots.work("default") == 1
    drop.step()
    result = "out/ä b+c%2Fd.txt"
    assert drop.bucket.get_bytes(f"{result}/echo.txt", limit_bytes=10) == b"hi"
    marker = json.loads(drop.bucket.get_bytes(result + DONE, limit_bytes=10_000))
    assert bench.store.run(records.read(JobKey("default", marker["id"]))).state is State.SUCCEEDED
    assert drop.step() == 0


def test_an_object_that_is_replaced_before_its_job_runs_is_not_taken_for_the_old_one(bench: Bench, drop: Drop) -> None:
    drop.bucket.put_bytes("in/a.txt", b"old", content_type="text/plain")
    drop.step()
    drop.bucket.put_bytes("in/a.txt", b"new!", content_type="text/plain")
    bench.slots.work("default")
    [stale] = bench.store.run(listing.list_jobs("default")).jobs
    assert stale.error is not None
    assert stale.error.code == "media_changed"
    drop.step()
    bench.slots.work("default")
    drop.step()
    assert drop.bucket.get_bytes("out/a.txt/echo.txt", limit_bytes=10) == b"new!"


def test_a_store_that_does_not_answer_for_too_long_is_tried_again_later(valkey: ValkeyProcess, tmp_path: Path) -> None:
    away = S3(endpoint_url="http://127.0.0.1:1", access_key_id="k", secret_access_key=SecretStr("s"))
    settings = {"object_store": "s3://bucket", "s3": away, "durability": "redis", "store_wait_s": 0.2}
    with open_bench(valkey.url, tmp_path, **settings) as bench:
        key = bench.submit("a", {"text": "media://up/in.txt"})
        bench.slots.work("default")
        job = bench.store.run(records.read(key))
        assert job.error is not None
        assert (job.state, job.error.code) == (State.DELAYED, "object_store_unavailable")
