"""Lists of jobs by HTTP: filters, pages that inserts do not move, and a scan that is bounded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.storage.redis import queues
from tests.support.service import Service, assert_problem


async def listed(service: Service, **params: Any) -> list[str]:
    """Return the ids of one page."""
    response = await service.http.get("/v1/jobs", params=params)
    assert response.status_code == 200, response.text
    return [job["id"] for job in response.json()["jobs"]]


async def test_jobs_are_found_by_their_metadata(service: Service) -> None:
    both = await service.submit(metadata={"who": "me", "a.b ü": "größer \U0001f30d"})
    mine = await service.submit(metadata={"who": "me"})
    await service.submit(metadata={"who": "you"})
    await service.submit()

    assert await listed(service, **{"metadata.who": "me"}) == [mine["id"], both["id"]]
    assert await listed(service, **{"metadata.who": "me", "metadata.a.b ü": "größer \U0001f30d"}) == [both["id"]]
    assert await listed(service, **{"metadata.who": ""}) == []
    assert await listed(service, **{"metadata.who": "me", "status": "succeeded"}) == []


async def test_jobs_are_found_by_when_they_were_made(service: Service) -> None:
    first, second, third = [await service.submit() for _ in range(3)]
    made = second["created_at"]

    assert await listed(service, created_after=made) == [third["id"]]
    assert await listed(service, created_before=made) == [first["id"]]
    assert await listed(service, created_after=first["created_at"], created_before=third["created_at"]) == [
        second["id"]
    ]
    elsewhere = made.replace("Z", "+00:00")
    assert await listed(service, created_after=elsewhere) == [third["id"]]


@pytest.mark.parametrize(("query", "sentence"), [
    ("created_after=yesterday", "created_after must be a time such as"),
    ("created_after=1767225600", "created_after must be a time such as"),
    ("created_before=2026-01-01T00:00:00", "created_before must be a time such as"),
    ("created_before=2026-13-01T00:00:00Z", "created_before"),
    ("created_after=2026-01-01T00:00:00+00:00", "write + as %2B"),
    ("metadata=x", "metadata is not known"), ("metadata.=x", "metadata. is not known"),
    (f"metadata.{'k' * 65}=x", "is not known"), (f"metadata.k={'x' * 513}", "must have at most 512"),
    ("metadata.k=1&metadata.k=2", "query parameter metadata.k is given more than once"),
    ("cursor=1", "cursor must match"), ("cursor=1-x", "cursor must match"),
])  # fmt: skip
async def test_a_filter_that_is_none_is_refused(service: Service, query: str, sentence: str) -> None:
    problem = assert_problem(await service.http.get(f"/v1/jobs?{query}"), 422, "invalid_request")
    assert sentence in problem["errors"][0]["detail"]


async def test_jobs_that_are_made_meanwhile_move_no_page(service: Service) -> None:
    made = [(await service.submit())["id"] for _ in range(5)]
    seen, cursor = [], None
    while True:
        params = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = (await service.http.get("/v1/jobs", params=params)).json()
        seen += [job["id"] for job in page["jobs"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
        await service.submit()
    assert seen == made[::-1]


async def test_jobs_of_one_moment_are_all_listed_once(service: Service) -> None:
    made = [(await service.submit())["id"] for _ in range(5)]
    await service.jobs.client.zadd("penstock:tenant:default:jobs", dict.fromkeys(made, 1_700_000_000_000_000))
    seen, cursor = [], None
    while cursor or not seen:
        params = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = (await service.http.get("/v1/jobs", params=params)).json()
        seen += [job["id"] for job in page["jobs"]]
        cursor = page["next_cursor"]
    assert seen == sorted(made, reverse=True)


async def test_the_last_page_has_no_cursor_although_it_is_full(service: Service) -> None:
    for _ in range(2):
        await service.submit()
    page = (await service.http.get("/v1/jobs", params={"limit": 2})).json()
    assert (len(page["jobs"]), page["next_cursor"]) == (2, None)


async def test_a_rare_job_is_found_past_many_others_without_looking_at_all_at_once(service: Service) -> None:
    rare = await service.submit(metadata={"rare": "yes"})
    await crowd(service, rare["id"], 12_000)
    params = {"metadata.rare": "yes"}
    first = (await service.http.get("/v1/jobs", params=params)).json()
    assert first["jobs"] == []
    rest = await service.http.get("/v1/jobs", params={**params, "cursor": first["next_cursor"]})
    assert [job["id"] for job in rest.json()["jobs"]] == [rare["id"]]


async def test_a_page_of_large_jobs_is_short(service: Service) -> None:
    for number in range(7):
        await service.submit(input={"text": f"{number}" + "x" * 900_000})
    page = (await service.http.get("/v1/jobs")).json()
    assert 4 <= len(page["jobs"]) < 7
    rest = (await service.http.get("/v1/jobs", params={"cursor": page["next_cursor"]})).json()
    assert (len(page["jobs"]) + len(rest["jobs"]), rest["next_cursor"]) == (7, None)


async def test_listed_jobs_say_where_they_stand(service: Service) -> None:
    await service.jobs.run(queues.seen("default", "w", 1, alive_s=20))
    await service.submit()
    await service.succeed(await service.claim())
    for _ in range(2):
        await service.submit()
    jobs = (await service.http.get("/v1/jobs")).json()["jobs"]
    assert [job["queue_position"] for job in jobs] == [2, 1, None]
    alone = [(await service.http.get(job["links"]["self"])).json() for job in jobs]
    assert [job["eta_seconds"] for job in jobs] == [job["eta_seconds"] for job in alone]
    assert jobs[0]["eta_seconds"] > jobs[1]["eta_seconds"]


async def crowd(service: Service, job_id: str, count: int) -> None:
    """Make so many newer jobs, as copies of a record without its metadata."""
    client = service.jobs.client
    record = await client.hgetall(f"penstock:tenant:default:job:{job_id}")
    record.pop("metadata")
    submission = json.loads(record["submission"])
    created = int(record["created_us"])
    for begin in range(0, count, 1000):
        pipe = client.pipeline(transaction=False)
        for number in range(begin, begin + 1000):
            name = f"01900000-0000-7000-8000-{number:012d}"
            submission["key"]["id"] = name
            pipe.hset(f"penstock:tenant:default:job:{name}", mapping={**record, "submission": json.dumps(submission)})
            pipe.zadd("penstock:tenant:default:jobs", {name: created + 1 + number})
        await pipe.execute()


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/jobs?limit=1&limit=2", "limit"),
        ("/v1/jobs?status=failed&limit=1&status=failed", "status"),
        ("/v1/jobs?metadata.a=1&metadata.a=2", "metadata.a"),
        ("/v1/batches?limit=1&limit=2", "limit"),
        ("/v1/jobs/018f0000-0000-7000-8000-000000000000?wait=0&wait=1", "wait"),
    ],
)
async def test_a_parameter_that_is_given_twice_is_refused_by_its_name(service: Service, path: str, name: str) -> None:
    problem = assert_problem(await service.http.get(path), 422, "invalid_request")
    assert [issue["detail"] for issue in problem["errors"]] == [f"query parameter {name} is given more than once"]
