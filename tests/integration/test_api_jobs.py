"""Jobs over HTTP: submit, repeat, read, wait, list, cancel, delete."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from datetime import UTC, datetime
from pathlib import Path

import pytest
import structlog

from penstock.errors import InvalidInput
from penstock.jobs import Phase, Progress, State
from penstock.storage.journal.environments import Environments
from penstock.storage.redis import queues, records
from penstock.storage.redis.records import JobStore, Outcome
from penstock.workers.keeper.purge import retire
from penstock.workers.keeper.recovery import recover_if_lost
from tests.support.service import Service, assert_problem, serving
from tests.support.valkey import ValkeyProcess

BODY = {"model": "echo", "input": {"text": "hello"}}


async def test_a_submitted_job_is_answered_202_with_where_to_go_and_wakes_a_worker(service: Service) -> None:
    response = await service.http.post("/v1/jobs", json={**BODY, "metadata": {"who": "me"}, "priority": "high"})
    job = response.json()
    assert response.status_code == 202
    assert response.headers["location"] == job["links"]["self"] == f"{service.settings.base_url}/v1/jobs/{job['id']}"
    assert int(response.headers["retry-after"]) >= 1
    assert uuid.UUID(job["id"]).version == 7
    assert (job["object"], job["status"], job["phase"], job["model"]) == ("job", "queued", "waiting", "echo")
    assert (job["metadata"], job["input"]) == ({"who": "me"}, {"text": "hello"})
    assert (job["attempt"], job["max_attempts"], job["delivery"]) == (0, 3, "none")
    assert datetime.fromisoformat(job["created_at"]).utcoffset().total_seconds() == 0  # type: ignore[union-attr]
    assert service.hints.get(timeout=30) == "default"
    record = (await service.claim()).submission
    assert (record.priority, record.queue_ttl_s, record.execution_timeout_s) == (1, 3600, 600)


async def test_a_job_submitted_under_an_alias_is_its_models_own(service: Service) -> None:
    job = await service.submit(model="parrot")
    assert job["model"] == "echo"
    assert (await service.claim()).key.id == job["id"]


async def test_a_request_may_set_its_own_clocks_and_carries_its_trace(service: Service) -> None:
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    body = {**BODY, "queue_ttl": 5, "execution_timeout": 7.5}
    response = await service.http.post("/v1/jobs", json=body, headers={"traceparent": trace})
    assert (response.status_code, response.headers["traceparent"]) == (202, trace)
    assert response.json()["traceparent"] == trace
    submission = (await service.claim()).submission
    assert (submission.queue_ttl_s, submission.execution_timeout_s, submission.traceparent) == (5, 7.5, trace)


async def test_the_same_key_and_body_find_the_same_job(service: Service) -> None:
    headers = {"Idempotency-Key": "order-1"}
    first = await service.http.post("/v1/jobs", json=BODY, headers=headers)
    second = await service.http.post(
        "/v1/jobs", content='{"input": {"text": "hello"}, "model": "echo"}',
        headers={**headers, "Content-Type": "application/json; charset=utf-8"},
    )  # fmt: skip
    assert (first.status_code, second.status_code) == (202, 202)
    assert first.json()["id"] == second.json()["id"]
    assert "idempotency-replayed" not in first.headers
    assert second.headers["idempotency-replayed"] == "true"
    assert uuid.UUID(first.json()["id"]).version == 5


async def test_the_same_key_with_another_body_is_refused(service: Service) -> None:
    headers = {"Idempotency-Key": "order-1"}
    await service.http.post("/v1/jobs", json=BODY, headers=headers)
    other = await service.http.post("/v1/jobs", json={**BODY, "priority": "low"}, headers=headers)
    assert "Idempotency-Key" in assert_problem(other, 422, "idempotency_mismatch")["detail"]


async def test_many_requests_with_one_key_at_once_make_one_job(service: Service) -> None:
    send = (service.http.post("/v1/jobs", json=BODY, headers={"Idempotency-Key": "burst"}) for _ in range(20))
    responses = await asyncio.gather(*send)
    assert len({response.json()["id"] for response in responses}) == 1
    assert sum("idempotency-replayed" not in response.headers for response in responses) == 1


async def test_a_repeated_request_finds_its_job_even_if_its_upload_is_gone(service: Service) -> None:
    upload = "01900000-0000-7000-8000-000000000000"
    service.objects.put_bytes(f"tenants/default/uploads/{upload}/a.tif", b"scene", content_type="image/tiff")
    body = {"model": "echo", "input": {"text": "hello", "scene": f"media://{upload}/a.tif"}}
    headers = {"Idempotency-Key": "once"}
    first = await service.http.post("/v1/jobs", json=body, headers=headers)
    service.objects.delete(f"tenants/default/uploads/{upload}/a.tif")
    second = await service.http.post("/v1/jobs", json=body, headers=headers)
    assert (second.status_code, second.json()["id"]) == (202, first.json()["id"])


@pytest.mark.parametrize("key", ["", "x" * 256])
async def test_an_idempotency_key_has_a_usable_length(service: Service, key: str) -> None:
    assert_problem(
        await service.http.post("/v1/jobs", json=BODY, headers={"Idempotency-Key": key}), 422, "invalid_request"
    )


async def test_a_job_can_be_put_under_an_id_of_ones_own(service: Service) -> None:
    own = str(uuid.uuid4())
    first = await service.http.put(f"/v1/jobs/{own.upper()}", json=BODY)
    second = await service.http.put(f"/v1/jobs/{own}", json=BODY)
    other = await service.http.put(f"/v1/jobs/{own}", json={**BODY, "metadata": {"a": "b"}})
    assert (first.status_code, first.json()["id"]) == (202, own)
    assert second.headers["idempotency-replayed"] == "true"
    detail = assert_problem(other, 422, "idempotency_mismatch")["detail"]
    assert own in detail
    assert "key" not in detail.lower()
    keyed = await service.http.put(f"/v1/jobs/{own}", json=BODY, headers={"Idempotency-Key": "k"})
    assert "Idempotency-Key" in assert_problem(keyed, 422, "invalid_request")["detail"]
    assert_problem(await service.http.put("/v1/jobs/mine", json=BODY), 422, "invalid_request")


async def test_prefer_wait_answers_200_when_it_saw_the_end(service: Service) -> None:
    waiting = asyncio.create_task(
        service.http.post("/v1/jobs", json=BODY, headers={"Prefer": "respond-async, wait=20"})
    )
    await asyncio.to_thread(service.hints.get, timeout=30)
    await service.succeed(await service.claim(), "done")
    response = await waiting
    assert (response.status_code, response.headers["preference-applied"]) == (200, "wait=20")
    job = response.json()
    assert (job["status"], job["phase"], job["output"]) == ("succeeded", None, {"text": "done", "json": {"n": 1}})
    assert job["metrics"].pop("queue_ms") >= 0
    assert job["metrics"] == {"inference_ms": 5.0}
    assert job["completed_at"] < job["expires_at"]
    assert "retry-after" not in response.headers


@pytest.mark.parametrize(("prefer", "applied"), [
    ("wait=0", "wait=0"), ("wait=0.01", "wait=1"), ('respond-async; wait="0" , x', "wait=0"), ("wait=0.5s", None),
    ("wait=soon", None), ("await=0", None), ("wait=-1", None), ("wait=", None),
])  # fmt: skip
async def test_a_preference_is_rounded_up_or_ignored(service: Service, prefer: str, applied: str | None) -> None:
    response = await service.http.post("/v1/jobs", json=BODY, headers={"Prefer": prefer})
    assert (response.status_code, response.headers.get("preference-applied")) == (202, applied)


async def test_repeating_the_request_of_a_job_that_is_over_is_answered_200(service: Service) -> None:
    own = str(uuid.uuid4())
    key = {"Idempotency-Key": "once"}
    await service.http.post("/v1/jobs", json=BODY, headers=key)
    await service.http.put(f"/v1/jobs/{own}", json=BODY)
    for _ in range(2):
        await service.succeed(await service.claim())
    again = [
        await service.http.post("/v1/jobs", json=BODY, headers=key),
        await service.http.put(f"/v1/jobs/{own}", json=BODY),
    ]
    for response in again:
        assert (response.status_code, response.json()["status"]) == (200, "succeeded")
        assert response.headers["idempotency-replayed"] == "true"
        assert "retry-after" not in response.headers


async def test_the_answer_to_a_submit_says_where_the_job_stands(service: Service) -> None:
    await service.jobs.run(queues.seen("default", "w", 1, alive_s=20))
    await service.submit()
    await service.succeed(await service.claim())
    await service.submit()
    second = await service.submit()
    assert second["queue_position"] == 2
    assert second["eta_seconds"] is not None


async def test_prefer_wait_answers_202_when_the_time_is_over(service: Service) -> None:
    response = await service.http.post("/v1/jobs", json=BODY, headers={"Prefer": "wait=0"})
    assert (response.status_code, response.headers["preference-applied"]) == (202, "wait=0")
    assert "retry-after" in response.headers


async def test_reading_waits_for_the_end(service: Service) -> None:
    job = await service.submit()
    claim = await service.claim()
    waiting = asyncio.create_task(service.http.get(job["links"]["self"], params={"wait": 20}))
    await service.succeed(claim)
    assert (await waiting).json()["status"] == "succeeded"


async def test_only_the_answer_about_one_job_has_the_provenance_also_of_a_newer_release(service: Service) -> None:
    job, described = await service.submit(), {"model": None, "machine": "cpu-x", "software": {"torch": "2"}}
    name = Environments().keep(service.objects, "default", described)
    made = {"environment": name, "later": [1]}
    outcome = Outcome(State.SUCCEEDED, text="hi", provenance=json.dumps(made))
    await service.end(await service.claim(), outcome)
    found = (await service.http.get(f"/v1/jobs/{job['id']}")).json()["provenance"]
    assert {each: found[each] for each in made | described} == made | described
    assert (found["inputs"], found["defaults"], found["parts"], found["copied_from"]) == ([], {}, 0, None)
    [listed] = (await service.http.get("/v1/jobs")).json()["jobs"]
    assert (listed["status"], listed["provenance"]) == ("succeeded", None)


async def test_a_job_whose_environment_cannot_be_read_is_answered_all_the_same(service: Service) -> None:
    job, described = await service.submit(), {"machine": "cpu-x", "software": {"torch": "2"}}
    name = Environments().keep(service.objects, "default", described)
    outcome = Outcome(State.SUCCEEDED, text="hi", provenance=json.dumps({"environment": name}))
    await service.end(await service.claim(), outcome)
    place = service.app.state.services.file(f"tenants/default/environments/{name}.json")
    content = place.read_bytes()
    place.unlink()
    place.mkdir()  # reading it fails
    first = await service.http.get(f"/v1/jobs/{job['id']}")
    assert (first.status_code, first.json()["provenance"]["environment"]) == (200, name)
    assert (first.json()["provenance"]["machine"], first.headers.get("etag")) == (None, None)
    place.rmdir()
    place.write_bytes(content)
    second = await service.http.get(f"/v1/jobs/{job['id']}")
    assert (second.json()["provenance"]["machine"], "etag" in second.headers) == ("cpu-x", True)


async def test_an_unchanged_job_is_answered_304(service: Service) -> None:
    job = await service.submit()
    first = await service.http.get(job["links"]["self"])
    again = await service.http.get(job["links"]["self"], headers={"If-None-Match": first.headers["etag"]})
    assert (first.status_code, first.json()["queue_position"]) == (200, 1)
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    for others in ("*", first.headers["etag"].removeprefix("W/"), f'"x", {first.headers["etag"]}'):
        assert (await service.http.get(job["links"]["self"], headers={"If-None-Match": others})).status_code == 304
    await service.claim()
    changed = await service.http.get(job["links"]["self"], headers={"If-None-Match": first.headers["etag"]})
    assert (changed.status_code, changed.json()["status"], changed.json()["attempt"]) == (200, "running", 1)


async def test_the_head_of_a_job_is_that_of_its_answer(service: Service) -> None:
    job = await service.submit()
    head, whole = [await service.http.request(verb, job["links"]["self"]) for verb in ("HEAD", "GET")]
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", whole.headers["etag"])
    assert (await service.http.head(f"/v1/jobs/{uuid.uuid4()}")).status_code == 404
    for path in ("/livez", "/readyz", "/v1/models/echo"):
        assert (await service.http.head(path)).status_code == 200


async def test_progress_is_seen(service: Service) -> None:
    job = await service.submit()
    claim = await service.claim()
    await service.jobs.run(records.heartbeat(claim, Phase.INFERRING, Progress(3, 9, "tiles", "row 1")))
    seen = (await service.http.get(job["links"]["self"])).json()
    assert seen["phase"] == "inferring"
    assert seen["progress"] == {"done": 3, "total": 9, "unit": "tiles", "message": "row 1"}


async def test_a_failed_job_is_data_and_not_an_http_error(service: Service) -> None:
    job = await service.submit()
    error = InvalidInput("the text is too quiet").report()
    await service.end(await service.claim(), Outcome(State.FAILED, error=error))
    response = await service.http.get(job["links"]["self"])
    assert (response.status_code, response.json()["status"]) == (200, "failed")
    assert response.json()["error"] == {
        "code": "invalid_input", "title": "The input does not fit the model.", "detail": "the text is too quiet",
        "retryable": False, "errors": [],
    }  # fmt: skip


@pytest.mark.parametrize("job_id", ["01900000-0000-7000-8000-000000000000", "nonsense", "../default"])
@pytest.mark.parametrize("what", ["", "/events", "/deliveries", "/artifacts/a.tif"])
async def test_an_unknown_job_is_404(service: Service, job_id: str, what: str) -> None:
    response = await service.http.get(f"/v1/jobs/{job_id.replace('/', '%2F')}{what}")
    assert response.status_code == 404
    assert response.json()["code"] in ("unknown_job", "not_found")


async def test_jobs_are_listed_newest_first_in_pages(service: Service) -> None:
    made = [(await service.submit(metadata={"n": str(n)}))["id"] for n in range(5)]
    seen, cursor, pages = [], None, 0
    while cursor is not None or not pages:
        params = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = (await service.http.get("/v1/jobs", params=params)).json()
        seen += [job["id"] for job in page["jobs"]]
        cursor, pages = page["next_cursor"], pages + 1
    assert seen == made[::-1]


async def test_the_list_can_be_narrowed(service: Service) -> None:
    first, second = await service.submit(), await service.submit()
    await service.succeed(await service.claim())
    done = (await service.http.get("/v1/jobs", params={"status": "succeeded"})).json()["jobs"]
    waiting = (await service.http.get("/v1/jobs", params={"status": "queued", "model": "echo"})).json()["jobs"]
    none = (await service.http.get("/v1/jobs", params={"model": "other"})).json()["jobs"]
    assert [job["id"] for job in done] == [first["id"]]
    assert [job["id"] for job in waiting] == [second["id"]]
    assert none == []


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "cursor=(1", "status=lost", "limit=many", "stauts=failed"])
async def test_a_wrong_list_query_is_refused(service: Service, query: str) -> None:
    problem = assert_problem(await service.http.get(f"/v1/jobs?{query}"), 422, "invalid_request")
    detail = problem["errors"][0]["detail"]
    assert detail.startswith(f"query parameter {query.partition('=')[0]} ")
    assert "Input" not in detail


async def test_canceling_a_waiting_job_ends_it_and_may_be_repeated(service: Service) -> None:
    job = await service.submit()
    answers = [await service.http.post(job["links"]["cancel"]) for _ in range(2)]
    assert [(answer.status_code, answer.json()["status"]) for answer in answers] == [(200, "canceled")] * 2


async def test_canceling_a_running_job_asks_its_worker(service: Service) -> None:
    job = await service.submit()
    claim = await service.claim()
    answer = await service.http.post(job["links"]["cancel"])
    assert (answer.status_code, answer.json()["status"]) == (202, "canceling")
    assert await service.jobs.run(records.heartbeat(claim, Phase.INFERRING, Progress())) == "cancel"


async def test_canceling_an_ended_job_changes_nothing(service: Service) -> None:
    job = await service.submit()
    await service.succeed(await service.claim())
    answer = await service.http.post(job["links"]["cancel"])
    assert (answer.status_code, answer.json()["status"]) == (200, "succeeded")


async def test_deleting_takes_the_job_and_its_objects(service: Service) -> None:
    job = await service.submit()
    claim = await service.claim()
    artifact = service.store_artifact(claim, "a.txt", b"text", "text/plain")
    await service.succeed(claim, artifacts=(artifact,))
    first = await service.http.delete(job["links"]["self"])
    again = await service.http.delete(job["links"]["self"])
    assert (first.status_code, first.content, again.status_code) == (204, b"", 204)
    assert list(service.objects.list(claim.key.prefix)) == []
    assert_problem(await service.http.get(job["links"]["self"]), 410, "job_gone")


async def test_deleting_a_waiting_job_cancels_it_first(service: Service) -> None:
    job = await service.submit()
    assert (await service.http.delete(job["links"]["self"])).status_code == 204
    assert_problem(await service.http.get(job["links"]["self"]), 410, "job_gone")


@pytest.mark.parametrize("state", [State.CANCELED, State.SUCCEEDED])
async def test_deleting_a_running_job_cancels_it_and_it_goes_by_itself_when_it_ended(
    service: Service, state: State
) -> None:
    job = await service.submit()
    claim = await service.claim()
    answer = await service.http.delete(job["links"]["self"])
    assert (answer.status_code, answer.json()["status"]) == (202, "canceling")
    await service.end(claim, Outcome(state))
    assert_problem(await service.http.get(job["links"]["self"]), 410, "job_gone")
    with contextlib.closing(JobStore.open(service.settings.redis_address)) as store:
        recover_if_lost(store, service.objects)  # purges begin after the first look for a loss
        retire(store, service.objects)
    assert list(service.objects.list(claim.key.prefix)) == []
    assert (await service.http.delete(job["links"]["self"])).status_code == 204


async def test_an_unknown_job_cannot_be_canceled_or_deleted(service: Service) -> None:
    nobody = f"/v1/jobs/{uuid.uuid4()}"
    assert_problem(await service.http.post(f"{nobody}/cancel"), 404, "unknown_job")
    assert_problem(await service.http.delete(nobody), 404, "unknown_job")


async def test_a_tenant_at_its_limit_is_told_when_to_come_back(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, max_tenant_jobs=1) as service:
        await service.submit()
        refused = await service.http.post("/v1/jobs", json=BODY)
        assert assert_problem(refused, 429, "too_many_jobs")["retryable"] is True
        assert int(refused.headers["retry-after"]) >= 1


async def test_a_full_queue_is_told_when_to_come_back(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, max_queued=1) as service:
        await service.submit()
        refused = await service.http.post("/v1/jobs", json=BODY)
        assert assert_problem(refused, 503, "queue_full")["retryable"] is True
        assert int(refused.headers["retry-after"]) >= 1


async def test_the_webhook_is_kept_and_its_delivery_can_be_read(service: Service) -> None:
    job = await service.submit(webhook={"url": "http://files.test/hook", "events": ["job.succeeded"]})
    await service.succeed(await service.claim())
    assert (await service.http.get(job["links"]["self"])).json()["delivery"] == "pending"
    (delivery,) = (await service.http.get(job["links"]["deliveries"])).json()["deliveries"]
    assert (delivery["event"], delivery["state"]) == ("job.succeeded", "pending")
    assert (delivery["url"], delivery["tries"], delivery["log"]) == ("http://files.test/hook", 0, [])
    assert datetime.fromisoformat(delivery["next_attempt_at"]) <= datetime.now(UTC)
    hastened = await service.http.post(f"{job['links']['deliveries']}/{delivery['id']}/redeliver")
    assert (hastened.status_code, hastened.json()["state"]) == (202, "pending")


async def test_each_job_that_is_made_is_a_log_line_with_its_trace(service: Service) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"Idempotency-Key": "k", "traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    body = {"model": "echo", "input": {"text": "hi"}}
    with structlog.testing.capture_logs() as lines:
        made = [(await service.http.post("/v1/jobs", json=body, headers=headers)).json()["id"] for _ in range(2)]
        batch = await service.http.post("/v1/batches", json={"requests": [body]}, headers=headers)
        other = (await service.submit())["id"]
    told = [line for line in lines if line["event"].endswith(".submitted")]
    common = {"log_level": "info", "trace_id": trace}
    assert told == [
        {"event": "job.submitted", "job": f"default/{made[0]}", "model": "echo", **common},
        {"event": "batch.submitted", "batch": f"default/{batch.json()['id']}", "lines": 1, **common},
        {"event": "job.submitted", "job": f"default/{other}", "model": "echo", "log_level": "info"},
    ]
