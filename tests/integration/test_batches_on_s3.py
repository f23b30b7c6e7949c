"""A batch on a real S3 server: lines from a bucket, results by a link of the store."""

from __future__ import annotations

import json
from pathlib import Path

import httpx2

from penstock.storage.objects.opening import open_store
from tests.support.batch_keeper import KeeperMoves, jsonl, line, read, submitted, work
from tests.support.ceph import Ceph
from tests.support.service import assert_problem, serving
from tests.support.valkey import ValkeyProcess


async def test_lines_come_from_a_bucket_and_results_by_a_link(
    ceph: Ceph, valkey: ValkeyProcess, tmp_path: Path
) -> None:
    inputs = ceph.bucket()
    options = {"object_store": f"s3://{ceph.bucket()}", "s3": ceph.s3, "s3_input_buckets": (inputs,)}
    async with serving(valkey.url, tmp_path, **options) as service, httpx2.AsyncClient() as web:
        bucket = open_store(f"s3://{inputs}", service.settings)
        data = jsonl([line(str(n)) for n in range(20)] + [{"input": 1}])
        info = bucket.put_bytes("in/r.jsonl", data, content_type="application/jsonl")
        stale = await service.http.post("/v1/batches", json={"file": f"s3://{inputs}/in/r.jsonl#etag=0"})
        assert_problem(stale, 422, "media_changed")
        assert_problem(
            await service.http.post("/v1/batches", json={"file": f"s3://{inputs}/none"}), 422, "media_not_found"
        )
        batch = await submitted(service, file=f"s3://{inputs}/in/r.jsonl#etag={info.etag}")
        bucket.delete("in/r.jsonl")  # the batch has its own copy
        keeper = KeeperMoves(service)
        while (await read(service, batch["id"]))["expanded"] < 21:
            await keeper.expand()
        assert await work(service) == 20
        await keeper.complete()

        ended = await read(service, batch["id"])
        assert (ended["status"], ended["counts"]["succeeded"], ended["counts"]["invalid"]) == ("completed", 20, 1)
        results, errors = ended["artifacts"]
        assert results["uri"].startswith(service.settings.store_url)
        redirect = await service.http.get(results["url"])
        assert redirect.status_code == 302
        fetched = await web.get(redirect.headers["location"])
        assert [json.loads(row)["line"] for row in fetched.content.splitlines()] == list(range(1, 21))
        link = (await service.http.get(errors["url"])).headers["location"]
        assert [json.loads(row)["line"] for row in (await web.get(link)).content.splitlines()] == [21]
        keeper.close()
