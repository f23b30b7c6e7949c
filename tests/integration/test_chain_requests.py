"""Chains by HTTP: which jobs a job may follow, what its document says, and what a delete answers."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from penstock.jobs import Artifact, JobKey, State, Submission
from penstock.requests import MAX_UPSTREAMS
from penstock.storage.journal import journal
from penstock.storage.redis.records import Outcome
from tests.support.service import Service, assert_problem

BODY = {"model": "echo", "input": {"text": "hello"}}
MASK = "mask.tif"


async def sweep(service: Service) -> None:
    await service.app.state.services.journal.run(journal.sweep())


async def test_a_job_names_the_jobs_that_it_follows_and_they_name_it(service: Service) -> None:
    first = await service.submit()
    second = await service.submit(after=[first["id"].upper()])
    assert (second["after"], second["status"], second["followers"]) == ([first["id"]], "queued", None)
    seen = await service.http.get(first["links"]["self"])
    assert (seen.json()["after"], seen.json()["followers"]) == ([], [second["id"]])
    third = await service.submit(after=[first["id"]])
    again = await service.http.get(first["links"]["self"], headers={"if-none-match": seen.headers["etag"]})
    assert (again.status_code, set(again.json()["followers"])) == (200, {second["id"], third["id"]})
    listed = (await service.http.get("/v1/jobs")).json()["jobs"]
    assert {job["id"]: (job["after"], job["followers"]) for job in listed} == {
        first["id"]: ([], None), second["id"]: ([first["id"]], None), third["id"]: ([first["id"]], None),
    }  # fmt: skip


@pytest.mark.parametrize("as_form", [False, True])
async def test_an_artifact_of_another_job_is_an_input_and_orders_the_jobs(service: Service, as_form: bool) -> None:
    first = await service.submit()
    reference = f"job://{first['id']}/{MASK}"
    if as_form:
        form = {"model": "echo", "text": "hello", "scene": reference}
        texts = {name: (None, text) for name, text in form.items()}
        second: dict[str, Any] = (await service.http.post("/v1/jobs", files=texts)).json()
    else:
        second = await service.submit(input={"text": "hello", "scene": reference})
    assert (second["after"], second["input"]["scene"]) == ([first["id"]], reference)
    [held] = await service.claims()
    made = Artifact(MASK, "image/tiff", 3, "ab", f"{held.prefix}{MASK}")
    await service.succeed(held, artifacts=(made,))
    [follower] = await service.claims()
    assert (follower.key.id, follower.upstreams) == (second["id"], {first["id"]: (made,)})


async def test_an_unknown_job_cannot_be_followed_whoever_has_it(service: Service) -> None:
    unknown, theirs = str(uuid.uuid4()), JobKey("other", str(uuid.uuid4()))
    made = Submission(theirs, model="echo", queue="default", input={"text": "x"}, fingerprint="f")
    await service.app.state.services.journal.run(journal.submit(made, service.app.state.services.limits))
    for name in (unknown, theirs.id):
        answer = await service.http.post("/v1/jobs", json={**BODY, "after": [name]})
        problem = assert_problem(answer, 422, "unknown_upstream")
        assert problem["detail"] == f"there is no job {name}"
        assert problem["errors"] == [{"pointer": "/after", "detail": "there is no such job"}]
    own = str(uuid.uuid4())
    answer = await service.http.put(f"/v1/jobs/{own}", json={**BODY, "after": [own]})
    assert_problem(answer, 422, "unknown_upstream")
    assert (await service.http.get("/v1/jobs")).json()["jobs"] == []


async def test_bad_names_of_upstreams_are_refused_with_their_place(service: Service) -> None:
    answer = await service.http.post("/v1/jobs", json={**BODY, "after": ["not-an-id"]})
    assert assert_problem(answer, 422, "invalid_request")["errors"][0]["pointer"] == "/after/0"
    answer = await service.http.post("/v1/jobs", json={**BODY, "input": {"text": "x", "scene": "job://no-id/a"}})
    assert assert_problem(answer, 422, "media_not_found")["errors"][0]["pointer"] == "/input/scene"
    many = [(await service.submit())["id"] for _ in range(MAX_UPSTREAMS + 1)]
    answer = await service.http.post("/v1/jobs", json={**BODY, "after": many})
    assert assert_problem(answer, 422, "invalid_request")["errors"][0]["pointer"] == "/after"
    scene = {"text": "x", "scene": f"job://{many[0]}/a"}
    answer = await service.http.post("/v1/jobs", json={**BODY, "input": scene, "after": many[1:]})
    assert "this one names 21" in assert_problem(answer, 422, "invalid_request")["detail"]


async def test_a_repeated_request_finds_its_job_after_its_upstream_was_deleted(service: Service) -> None:
    first = await service.submit()
    await service.succeed(await service.claim())
    body, headers = {**BODY, "after": [first["id"]]}, {"idempotency-key": "once"}
    made = (await service.http.post("/v1/jobs", json=body, headers=headers)).json()
    await service.succeed(await service.claim())
    assert (await service.http.delete(first["links"]["self"])).status_code == 204
    again = await service.http.post("/v1/jobs", json=body, headers=headers)
    assert (again.status_code, again.json()["id"]) == (200, made["id"])


async def test_a_failed_upstream_is_named_in_the_error(service: Service) -> None:
    first = await service.submit()
    second = await service.submit(after=[first["id"]])
    await service.end(await service.claim(), Outcome(State.FAILED))
    await sweep(service)
    job = (await service.http.get(second["links"]["self"])).json()
    assert (job["status"], job["error"]["code"], first["id"] in job["error"]["detail"]) == (
        "failed", "upstream_failed", True,
    )  # fmt: skip


async def test_canceling_the_first_job_cancels_the_chain(service: Service) -> None:
    jobs = [await service.submit()]
    for _ in range(2):
        jobs.append(await service.submit(after=[jobs[-1]["id"]]))
    assert (await service.http.post(f"{jobs[0]['links']['self']}/cancel")).status_code == 200
    await sweep(service)
    await sweep(service)
    ends = [(await service.http.get(job["links"]["self"])).json()["status"] for job in jobs]
    assert ends == ["canceled"] * 3


async def test_the_delete_of_a_job_that_others_wait_for_answers_409_until_they_have_ended(service: Service) -> None:
    first = await service.submit()
    await service.succeed(await service.claim())
    await service.submit(after=[first["id"]])
    problem = assert_problem(await service.http.delete(first["links"]["self"]), 409, "state_conflict")
    assert "wait for this one" in problem["detail"]
    await service.succeed(await service.claim())
    assert (await service.http.delete(first["links"]["self"])).status_code == 204


async def test_a_job_is_kept_for_its_followers_beyond_its_retention(service: Service) -> None:
    first = await service.submit()
    await service.succeed(await service.claim())
    await service.submit(after=[first["id"]])
    key = f"penstock:tenant:default:job:{first['id']}"
    await service.jobs.client.hset(key, "retention_us", "0")  # type: ignore[misc]
    assert (await service.http.get(first["links"]["self"])).status_code == 200
    assert len((await service.http.get("/v1/jobs")).json()["jobs"]) == 2
    await service.succeed(await service.claim())
    assert_problem(await service.http.get(first["links"]["self"]), 410, "job_gone")
