"""The client against the real API on a real Valkey."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx2
import pytest

from penstock.client import AsyncClient, ClientError, Corrupt, Event, Job, PenstockAPIError, Unreachable
from penstock.jobs import State, Status
from penstock.storage.redis import upkeep
from penstock.storage.redis.records import Outcome
from tests.support.service import Service


def client_of(service: Service) -> AsyncClient:
    return AsyncClient(service.settings.base_url, patience_s=1, transport=httpx2.ASGITransport(service.app))


async def test_a_file_goes_up_a_job_is_followed_and_its_result_comes_down(service: Service, tmp_path: Path) -> None:
    (tmp_path / "scene.tif").write_bytes(b"x" * 500)
    sent: list[tuple[int, int]] = []
    events: list[Event] = []
    async with client_of(service) as client:
        job = await client.submit(
            "echo", {"text": "hi"}, files={"scene": tmp_path / "scene.tif"}, metadata={"a": "b"},
            on_bytes=lambda done, total: sent.append((done, total)),
        )  # fmt: skip
        assert (job.status, job.metadata) == (Status.QUEUED, {"a": "b"})
        assert sent == [(500, 500)]
        claim = await service.claim()
        artifact = service.store_artifact(claim, "map.tif", b"a map", "image/tiff")
        following = asyncio.create_task(client.wait(job.id, on_event=events.append))
        await service.succeed(claim, artifacts=(artifact,))
        job = await following
        assert (job.succeeded, job.text, job.data) == (True, "hello", {"n": 1})
        assert events[0].type == "snapshot"
        assert events[-1].type == "job.succeeded"
        files = await client.download(job, tmp_path / "out" / "here")

    assert [file.name for file in files] == ["map.tif", "manifest.json", "job.json"]
    assert files[0].read_bytes() == b"a map"
    assert json.loads(files[1].read_text())["artifacts"][0]["sha256"] == artifact.sha256
    assert json.loads(files[2].read_text())["id"] == job.id
    assert {p.name for p in (tmp_path / "out" / "here").iterdir()} == {f.name for f in files}


async def test_wrong_bytes_do_not_become_a_file(service: Service, tmp_path: Path) -> None:
    async with client_of(service) as client:
        job = await client.submit("echo", {"text": "hi"})
        claim = await service.claim()
        artifact = service.store_artifact(claim, "map.tif", b"a map", "image/tiff")
        service.objects.put_bytes(artifact.key, b"a mop", content_type="image/tiff")
        await service.succeed(claim, artifacts=(artifact,))
        with pytest.raises(Corrupt, match=r"map\.tif"):
            await client.download(await client.wait(job.id), tmp_path / "out")

    assert list((tmp_path / "out").iterdir()) == []


async def test_one_key_is_one_job(service: Service) -> None:
    async with client_of(service) as client:
        first = await client.submit("echo", {"text": "hi"}, idempotency_key="k")
        second = await client.submit("echo", {"text": "hi"}, idempotency_key="k")
        with pytest.raises(PenstockAPIError) as caught:
            await client.submit("echo", {"text": "ho"}, idempotency_key="k")

        assert first.id == second.id
        assert (caught.value.status, caught.value.code) == (422, "idempotency_mismatch")
        assert [job.id for job in (await client.jobs()).jobs] == [first.id]


async def test_one_key_and_one_file_are_one_job_and_another_file_is_refused(service: Service, tmp_path: Path) -> None:
    scene = tmp_path / "scene.tif"
    sent: list[int] = []
    async with client_of(service) as client:

        async def submit() -> Job:
            return await client.submit(
                "echo", {"text": "hi"}, files={"scene": scene}, idempotency_key="k",
                on_bytes=lambda done, _: sent.append(done),
            )  # fmt: skip

        scene.write_bytes(b"one")
        first, second = await submit(), await submit()
        assert (first.id, sent) == (second.id, [3])
        scene.write_bytes(b"two")
        with pytest.raises(PenstockAPIError) as caught:
            await submit()
        assert (caught.value.status, caught.value.code) == (422, "idempotency_mismatch")


async def test_a_running_job_is_deleted_when_its_worker_gave_it_up(service: Service) -> None:
    async with client_of(service) as client:
        job = await client.submit("echo", {"text": "hi"})
        claim = await service.claim()
        async with service.jobs.changes(claim.key) as changes:
            deleting = asyncio.create_task(client.delete(job.id))
            await changes.wait(30)
        await service.end(claim, Outcome(State.CANCELED))
        await deleting
        with pytest.raises(PenstockAPIError, match="purged"):
            await client.job(job.id)


async def test_a_job_can_be_canceled_traced_and_deleted(service: Service) -> None:
    async with client_of(service) as client:
        job = await client.submit("echo", {"text": "hi"})

        assert (await client.cancel(job.id)).status is Status.CANCELED
        assert [event.type for event in await client.event_list(job.id)] == ["job.created", "job.canceled"]
        assert await client.deliveries(job.id) == []
        await client.delete(job.id)
        with pytest.raises(PenstockAPIError) as caught:
            await client.job(job.id)
        assert caught.value.status == 410


async def test_the_catalogue_and_the_queue_are_readable(service: Service) -> None:
    async with client_of(service) as client:
        assert [model.name for model in await client.models()] == ["broken", "echo"]
        assert (await client.model("broken")).problem
        assert (await client.queue("default")).queued == 0


async def test_a_service_that_is_not_there_is_one_sentence() -> None:
    async with AsyncClient("http://127.0.0.1:9", patience_s=0) as client:
        with pytest.raises(Unreachable, match=r"no answer from http://127\.0\.0\.1:9"):
            await client.models()


@pytest.mark.parametrize("address", ["nonsense", "http://", "http://[::1", "http://localhost:abc"])
def test_an_address_must_be_one(address: str) -> None:
    with pytest.raises(ClientError, match="is not the address of a service"):
        AsyncClient(address)


async def test_a_failed_job_is_retried_and_a_lost_receiver_is_told_again(service: Service) -> None:
    async with client_of(service) as client:
        job = await client.submit("echo", {"text": "hi"}, webhook="http://files.test:80/hook")
        await client.cancel(job.id)
        retried = await client.retry(job.id)
        assert (await client.retry(job.id)).id == retried.id
        assert (await client.retry(job.id, idempotency_key="k")).id != retried.id
        assert retried.raw["retry_of"] == job.id

        [delivery] = await client.deliveries(job.id)
        assert (delivery.event, delivery.state, delivery.log) == ("job.canceled", "pending", ())
        assert (await client.redeliver(job.id, delivery.id)).id == delivery.id
        with pytest.raises(PenstockAPIError, match="delivery"):
            await client.redeliver(job.id, "no such")


async def test_queues_are_listed_controlled_and_purged(service: Service) -> None:
    async with client_of(service) as client:
        for text in "abc":
            await client.submit("echo", {"text": text})

        assert [(queue.name, queue.queued, queue.mode) for queue in await client.queues()] == [("default", 3, "open")]
        assert (await client.pause_queue()).mode == "paused"
        assert (await client.drain_queue()).mode == "draining"
        assert (await client.resume_queue()).mode == "open"
        assert await client.purge_queue() == 3
        assert await client.purge_queue() == 0
        with pytest.raises(PenstockAPIError, match="queue"):
            await client.pause_queue("no where")


async def test_dead_letters_become_new_jobs(service: Service) -> None:
    async with client_of(service) as client:
        job = await client.submit("echo", {"text": "hi"})
        await service.die(job.id)

        assert [dead.id for dead in await client.dead_letters()] == [job.id]
        assert [new.raw["retry_of"] for new in await client.requeue_dead_letters()] == [job.id]
        assert await client.dead_letters() == []


async def test_two_services_have_different_marks(service: Service) -> None:
    async with client_of(service) as client:
        assert await client.job_store() is None
        marks = set()
        for who in ("a", "b"):
            await service.jobs.run(upkeep.recovering(who, begin=True))
            await service.jobs.run(upkeep.recovering(who, begin=False))
            marks.add(await client.job_store())
    assert len(marks) == 2
    assert None not in marks
