"""Batches end with their earlier successes: by a cancel, their time, a delete, their retention."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from penstock.batches import BatchKey
from penstock.errors import InvalidInput
from penstock.jobs import State
from penstock.storage.journal import batch_journal
from penstock.storage.journal.batch_manifests import read_end
from penstock.storage.journal.journal import AsyncJournal
from penstock.storage.redis import batches, deliveries, records
from penstock.storage.redis.records import Outcome
from penstock.workers.keeper.purge import retire_batches
from penstock.workers.keeper.recovery import recover_if_lost
from tests.support.batch_keeper import KeeperMoves, line, parts, read, rows, submitted, work
from tests.support.service import Service, assert_problem, serving
from tests.support.valkey import ValkeyProcess

FAILED = Outcome(State.FAILED, error=InvalidInput("bad").report())


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


async def test_waiting_for_a_batch_ends_with_it(service: Service, keeper: KeeperMoves) -> None:
    batch = await submitted(service, requests=[line("a")])
    waiting = asyncio.create_task(service.http.get(f"/v1/batches/{batch['id']}", params={"wait": 50}))
    await keeper.expand()
    await work(service)
    await keeper.complete()
    assert (await waiting).json()["status"] == "completed"


async def test_members_wait_no_longer_than_their_batch(service: Service, keeper: KeeperMoves) -> None:
    batch = await submitted(service, requests=[line("a", queue_ttl=9999.0), line("b", queue_ttl=5.0)], ttl=100.0)
    await keeper.expand()
    for n, most in ((1, 100), (2, 5)):
        job = keeper.store.run(records.read(BatchKey("default", batch["id"]).member(n)))
        assert 0 < job.submission.queue_ttl_s <= most


async def test_a_batch_goes_with_its_jobs(service: Service, keeper: KeeperMoves) -> None:
    batch = await submitted(service, requests=[line("a"), line("b")])
    await keeper.expand()
    first = await service.http.delete(f"/v1/batches/{batch['id']}")
    assert (first.status_code, first.json()["status"]) == (202, "canceling")
    await keeper.complete()

    for path in ("", "/artifacts/results.jsonl"):
        assert_problem(await service.http.get(f"/v1/batches/{batch['id']}{path}"), 410, "batch_gone")
    assert (await service.http.get("/v1/batches")).json()["batches"] == []
    await asyncio.to_thread(recover_if_lost, keeper.store, service.objects)
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


async def test_the_webhook_of_a_batch_is_told_its_end_once(service: Service, keeper: KeeperMoves) -> None:
    hook = {"url": "http://files.test:80/batches"}
    batch = await submitted(service, requests=[line("a"), line("b")], webhook=hook, metadata={"k": "v"})
    assert (await service.jobs.run(deliveries.due(9, 60))).tasks == ()
    await keeper.expand()
    await work(service)
    await keeper.complete()
    await keeper.complete()
    [task] = (await service.jobs.run(deliveries.due(9, 60))).tasks
    assert (task.job, task.delivery.url, task.delivery.event) == (None, hook["url"], "batch.completed")
    assert task.delivery.id == f"msg_{batch['id']}_batch.completed"
    body = json.loads(task.delivery.body or "")
    assert (body["type"], body["data"]["id"], body["data"]["metadata"]) == ("batch.completed", batch["id"], {"k": "v"})
    assert body["data"]["counts"]["succeeded"] == 2
    assert [file["name"] for file in body["data"]["artifacts"]] == ["results.jsonl", "errors.jsonl"]
    shown = (await service.http.get(f"/v1/deliveries/{task.delivery.id}")).json()
    assert (shown["event"], shown["job"], shown["endpoint"]) == ("batch.completed", None, None)
    # A keeper that died between the stored end and Redis repeats both, with the same id and bytes.
    await service.jobs.client.delete(f"penstock:tenant:default:delivery:{task.delivery.id}")
    ended = read_end(service.objects, BatchKey("default", batch["id"]))
    assert ended is not None
    await AsyncJournal(service.jobs, service.objects).run(batch_journal.finish(BatchKey("default", batch["id"]), ended))
    again = await service.jobs.run(deliveries.delivery("default", task.delivery.id))
    assert again.body == task.delivery.body


async def test_a_receiver_that_may_not_be_called_refuses_the_batch(service: Service) -> None:
    wanted = {"requests": [line("a")], "webhook": {"url": "http://127.0.0.1:1/"}}
    problem = assert_problem(await service.http.post("/v1/batches", json=wanted), 422, "invalid_request")
    assert problem["errors"][0]["pointer"] == "/webhook/url"
