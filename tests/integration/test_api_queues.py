"""Operators' actions: retry jobs, pause, drain and purge queues, and manage dead letters."""

from __future__ import annotations

import uuid
from typing import Any

from penstock.errors import InvalidInput, ObjectStoreUnavailable
from penstock.jobs import QueueMode, State
from penstock.storage.journal.queue_modes import read_modes
from penstock.storage.objects.base import ObjectInfo
from penstock.storage.objects.local import LocalStore
from penstock.storage.redis import catalogues, queues
from penstock.storage.redis.records import Outcome
from tests.support.claims import claiming
from tests.support.service import ECHO, Service, assert_problem


class Away(LocalStore):
    """An object store that stores nothing."""

    def put_bytes(self, *_: Any, **__: Any) -> ObjectInfo:
        raise ObjectStoreUnavailable


FAILED = Outcome(State.FAILED, error=InvalidInput("bad").report())
QUEUE = "/v1/queues/default"


async def is_claimable(service: Service) -> bool:
    return await service.jobs.run(claiming("default", models=["echo"])) is not None


class TestRetry:
    async def test_is_a_new_job_with_the_same_input(self, service: Service) -> None:
        job = await service.submit(metadata={"k": "v"})
        await service.end(await service.claim(), FAILED)
        response = await service.http.post(f"/v1/jobs/{job['id']}/retry")
        new = response.json()
        assert response.status_code == 202
        assert response.headers["location"].endswith(new["id"])
        assert (new["retry_of"], new["status"], new["attempt"]) == (job["id"], "queued", 0)
        assert (new["input"], new["metadata"]) == (job["input"], job["metadata"])
        assert (await service.http.get(job["links"]["self"])).json()["status"] == "failed"
        assert (await service.claim()).key.id == new["id"]

    async def test_twice_is_one_job_unless_named_otherwise(self, service: Service) -> None:
        job = await service.submit()
        await service.http.post(job["links"]["cancel"])
        url = f"/v1/jobs/{job['id']}/retry"
        first, again = [await service.http.post(url) for _ in range(2)]
        other = await service.http.post(url, headers={"Idempotency-Key": "k"})
        assert first.json()["id"] == again.json()["id"] != other.json()["id"]
        assert "idempotency-replayed" not in first.headers
        assert again.headers["idempotency-replayed"] == "true"

    async def test_of_a_job_that_lives_or_succeeded_is_refused(self, service: Service) -> None:
        job = await service.submit()
        url = f"/v1/jobs/{job['id']}/retry"
        assert_problem(await service.http.post(url), 409, "state_conflict")
        await service.succeed(await service.claim())
        assert_problem(await service.http.post(url), 409, "state_conflict")
        assert_problem(await service.http.post(f"/v1/jobs/{uuid.uuid4()}/retry"), 404, "unknown_job")


class TestControl:
    async def test_a_paused_queue_accepts_and_gives_nothing(self, service: Service) -> None:
        assert (await service.http.post(f"{QUEUE}/pause")).json()["mode"] == "paused"
        await service.submit()
        assert not await is_claimable(service)
        assert (await service.http.post(f"{QUEUE}/resume")).json()["mode"] == "open"
        assert await is_claimable(service)

    async def test_a_mode_is_in_the_object_store_when_it_is_answered(self, service: Service) -> None:
        await service.http.post(f"{QUEUE}/pause")
        assert read_modes(service.objects) == {"default": "paused"}
        await service.http.post(f"{QUEUE}/resume")
        assert read_modes(service.objects) == {}

    async def test_a_mode_that_cannot_be_stored_is_said_to_be_not(self, service: Service) -> None:
        service.swap(objects=Away(service.settings.data / "objects"))
        problem = assert_problem(await service.http.post(f"{QUEUE}/pause"), 503, "object_store_unavailable")
        assert "not stored" in problem["detail"]
        assert not await is_claimable(service)
        await service.jobs.run(queues.set_mode("default", QueueMode.OPEN))

    async def test_a_draining_queue_gives_and_accepts_nothing(self, service: Service) -> None:
        await service.submit()
        assert (await service.http.post(f"{QUEUE}/drain")).json()["mode"] == "draining"
        refused = await service.http.post("/v1/jobs", json={"model": "echo", "input": {"text": "x"}})
        assert_problem(refused, 503, "queue_draining")
        assert int(refused.headers["retry-after"]) >= 1
        assert await is_claimable(service)
        await service.http.post(f"{QUEUE}/resume")
        await service.submit()

    async def test_a_purge_cancels_what_waits_and_nothing_else(self, service: Service) -> None:
        running = await service.submit()
        claim = await service.claim()
        waiting = [await service.submit() for _ in range(3)]
        assert (await service.http.post(f"{QUEUE}/purge")).json() == {"canceled": 3, "more": False}
        for job in waiting:
            assert (await service.http.get(job["links"]["self"])).json()["status"] == "canceled"
        assert (await service.http.get(running["links"]["self"])).json()["status"] == "running"
        await service.succeed(claim)

    async def test_all_queues_are_listed_those_without_jobs_too(self, service: Service) -> None:
        await service.jobs.run(queues.seen("gpu", "w", 2, alive_s=20))
        await service.submit()
        found = (await service.http.get("/v1/queues")).json()["queues"]
        assert [(queue["name"], queue["queued"], queue["slots"]) for queue in found] == [
            ("default", 1, 0),
            ("gpu", 0, 2),
        ]
        assert found[0].keys() == (await service.http.get(QUEUE)).json().keys()

    async def test_the_queue_of_a_catalogue_model_wants_nothing_before_its_first_job(self, service: Service) -> None:
        rare = ECHO.model_copy(update={"name": "rare", "queue": "rare"})
        await service.jobs.run(catalogues.publish([rare], worker="w2", queues=["rare"], alive_s=600))
        found = (await service.http.get("/v1/queues/rare")).json()
        assert (found["queued"], found["workers"], found["wanted_workers"]) == (0, 0, 0)
        assert "rare" in [queue["name"] for queue in (await service.http.get("/v1/queues")).json()["queues"]]
        assert 'penstock_queue_wanted_workers{queue="rare"} 0.0' in (await service.http.get("/metrics")).text

    async def test_a_waiting_job_wants_a_worker_where_none_lives(self, service: Service) -> None:
        await service.submit()
        assert (await service.http.get(QUEUE)).json()["wanted_workers"] == 1
        assert 'penstock_queue_wanted_workers{queue="default"} 1.0' in (await service.http.get("/metrics")).text

    async def test_an_unknown_queue_is_not_made_by_asking(self, service: Service) -> None:
        for move in ("pause", "resume", "drain", "purge", "dead-letters/requeue"):
            assert_problem(await service.http.post(f"/v1/queues/nowhere/{move}"), 404, "unknown_queue")


class TestDeadLetters:
    async def test_are_listed_and_requeued_as_new_jobs(self, service: Service) -> None:
        job = await service.submit()
        await service.die(job["id"])
        assert (await service.http.get(QUEUE)).json()["dead_letters"] == 1
        [dead] = (await service.http.get(f"{QUEUE}/dead-letters")).json()["jobs"]
        assert (dead["id"], dead["error"]["code"]) == (job["id"], "worker_lost")
        answer = (await service.http.post(f"{QUEUE}/dead-letters/requeue")).json()
        assert ([new["retry_of"] for new in answer["jobs"]], answer["more"]) == ([job["id"]], False)
        assert (await service.http.get(f"{QUEUE}/dead-letters")).json()["jobs"] == []
        assert (await service.http.get(dead["links"]["self"])).json()["status"] == "failed"

    async def test_leave_the_list_with_their_retry_and_with_their_record(self, service: Service) -> None:
        retried, deleted = await service.submit(), await service.submit()
        await service.die(retried["id"])
        await service.die(deleted["id"])
        await service.http.post(f"/v1/jobs/{retried['id']}/retry")
        assert (await service.http.delete(deleted["links"]["self"])).status_code == 204
        assert (await service.http.get(QUEUE)).json()["dead_letters"] == 0

    async def test_other_failures_are_none(self, service: Service) -> None:
        await service.submit()
        await service.end(await service.claim(), FAILED)
        assert (await service.http.get(QUEUE)).json()["dead_letters"] == 0


async def test_a_service_without_workers_asks_for_patience(service: Service) -> None:
    await service.jobs.client.delete("penstock:catalogue")
    refused = await service.http.post("/v1/jobs", json={"model": "echo", "input": {"text": "x"}})
    assert_problem(refused, 503, "not_ready")
    assert refused.headers["retry-after"] == "5"
