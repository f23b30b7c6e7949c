"""Jobs whose model no worker can run: they wait for a usable worker and report the reason."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest

from penstock.api.routes.events import POLL_INTERVAL_S
from penstock.errors import WorkerLost
from penstock.jobs import JobKey, State
from penstock.models import CatalogueEntry
from penstock.storage.redis import catalogues, queues
from penstock.storage.redis.changes import CHANNEL
from penstock.storage.redis.records import Outcome
from tests.integration.test_api_events import messages
from tests.support.api_server import listening
from tests.support.command_line import Shell
from tests.support.service import ECHO, Service

PROBLEM = "its folder has no model.safetensors"
SENTENCE = f"it cannot run at the moment: {PROBLEM}"
ILL = ECHO.model_copy(update={"problem": PROBLEM})


@pytest.fixture(autouse=True)
async def worker_of_the_queue(service: Service) -> None:
    """Have a worker serve the queue: otherwise its jobs report that none does."""
    await service.jobs.run(queues.seen("default", "w", 1, alive_s=600))


async def publish(service: Service, entry: CatalogueEntry, worker: str = "w") -> None:
    """Tell of the model as a worker does."""
    await service.jobs.run(catalogues.publish([entry], worker=worker, queues=["default"], alive_s=600))


async def look(service: Service, job: dict[str, Any]) -> None:
    """Have the job's streams look now."""
    await service.jobs.client.publish("penstock:changes", f"default/{job['id']}")


async def problem_of(service: Service, job: dict[str, Any]) -> str | None:
    answer = (await service.http.get(job["links"]["self"])).json()
    [listed] = (await service.http.get("/v1/jobs")).json()["jobs"]
    assert listed["model_problem"] == answer["model_problem"]
    problem: str | None = answer["model_problem"]
    return problem


async def test_a_waiting_job_says_what_is_wrong_with_its_model_until_that_is_mended(service: Service) -> None:
    job = await service.submit()
    assert job["model_problem"] is None
    await publish(service, ILL)
    assert await problem_of(service, job) == PROBLEM
    await publish(service, ECHO)
    assert await problem_of(service, job) is None


async def test_a_model_that_another_worker_can_run_is_no_problem(service: Service) -> None:
    job = await service.submit()
    await publish(service, ILL, worker="v")
    assert await problem_of(service, job) is None


async def test_a_published_model_that_no_worker_of_its_queue_has_is_said_to_be_one(service: Service) -> None:
    job = await service.submit()
    leave = queues.leave("default", "w")
    await service.jobs.run(leave)
    await service.jobs.client.delete("penstock:catalogue:ranks", "penstock:catalogue")
    assert await problem_of(service, job) == "no worker serves this queue"
    await service.jobs.run(queues.seen("default", "v", 1, alive_s=600))
    assert await problem_of(service, job) is None, "it may be of a release that does not say which models live"
    await publish(service, ECHO.model_copy(update={"name": "other", "aliases": ()}), worker="v")
    assert await problem_of(service, job) == "none of the workers of this queue has its model"
    await publish(service, ECHO, worker="v")
    assert await problem_of(service, job) is None


async def test_a_model_that_left_the_catalogue_is_said_to_be_served_no_more_until_it_is_back(service: Service) -> None:
    job = await service.submit()
    before = datetime.now(UTC)
    other = ECHO.model_copy(update={"name": "other", "aliases": ()})
    await publish(service, other, worker="v")
    assert await problem_of(service, job) is None, "another worker of the queue still tells of it"
    await publish(service, other)
    said = await problem_of(service, job) or ""
    assert said.startswith("no worker serves it any more, since ")
    since = datetime.fromisoformat(said.rpartition(" ")[2])
    assert before - timedelta(seconds=1) <= since <= datetime.now(UTC) + timedelta(seconds=1)
    await publish(service, other)
    assert await problem_of(service, job) == said, "it did not leave again"
    await publish(service, ECHO)
    assert await problem_of(service, job) is None


async def test_a_job_that_waits_for_its_next_attempt_says_it_and_one_that_runs_does_not(service: Service) -> None:
    job = await service.submit()
    claim = await service.claim()
    await publish(service, ILL)
    assert await problem_of(service, job) is None
    failure = Outcome(State.DELAYED, error=WorkerLost().report(), retry_delay_s=60)
    await service.end(claim, failure)
    assert await problem_of(service, job) == PROBLEM


async def test_a_poller_that_knows_the_job_hears_of_the_problem(service: Service) -> None:
    job = await service.submit()
    known = (await service.http.get(job["links"]["self"])).headers["etag"]
    await publish(service, ILL)
    changed = await service.http.get(job["links"]["self"], headers={"If-None-Match": known})
    again = await service.http.get(job["links"]["self"], headers={"If-None-Match": changed.headers["etag"]})
    assert (changed.status_code, again.status_code) == (200, 304)


async def test_a_stream_has_another_snapshot_when_the_problem_comes_and_only_then(service: Service) -> None:
    job = await service.submit()
    async with (
        listening(service) as server,
        httpx2.AsyncClient(timeout=20) as http,
        http.stream("GET", f"{server.url}/v1/jobs/{job['id']}/events") as response,
    ):
        stream = messages(response)
        assert [(await anext(stream)).event for _ in range(2)] == ["snapshot", "job.created"]
        await publish(service, ILL)
        told = await asyncio.wait_for(anext(stream), POLL_INTERVAL_S / 3)
        assert (told.event, told.id, told.data["model_problem"]) == ("snapshot", None, PROBLEM)
        await look(service, job)
        await publish(service, ECHO)
        await service.succeed(await service.claim())
        assert [message.event async for message in stream] == ["job.started", "job.succeeded"]


async def test_only_another_problem_wakes_who_waits_with_a_model(service: Service) -> None:
    key = JobKey("default", (await service.submit())["id"])
    async with service.jobs.client.pubsub() as channel:
        await channel.subscribe(CHANNEL)
        other = ECHO.model_copy(update={"name": "other", "aliases": ()})
        another = ILL.model_copy(update={"problem": "another"})
        for entry in (ILL, ILL, another, ECHO, ECHO, other, other, ECHO):
            await publish(service, entry)
        await service.jobs.client.publish(CHANNEL, "the end")
        heard = [message["data"] async for message in until_the_end(channel)]
    # It is ill, ill otherwise, well, gone, and back.
    assert [name for name in heard if name == "model:echo"] == ["model:echo"] * 5
    async with service.jobs.changes(key, model="echo") as changes, asyncio.timeout(POLL_INTERVAL_S):
        await publish(service, ILL)
        await changes.wait(POLL_INTERVAL_S * 2)


async def until_the_end(channel: Any) -> AsyncIterator[dict[str, Any]]:
    async for message in channel.listen():
        if message["data"] == "the end":
            return
        if message["type"] == "message":
            yield message


@pytest.mark.breadth
async def test_the_command_line_says_why_a_job_waits(service: Service) -> None:
    job = await service.submit()
    await publish(service, ILL)
    async with listening(service) as server:
        penstock = Shell({"PENSTOCK_URL": server.url})
        status, trace = await penstock("status", job["id"]), await penstock("trace", job["id"])
        waited = await penstock("wait", job["id"], "--timeout", "1")
    assert status.out == f"{job['id']}  echo  queued  waiting  place 1  {SENTENCE}\n"
    assert [line.split() for line in trace.out.splitlines() if "to come" in line] == [
        ["to", "come", "next", "attempt", "model_problem", *PROBLEM.split()]
    ]
    assert waited.code == 4
    assert waited.err.splitlines()[0] == SENTENCE
    assert waited.err.splitlines()[-1].endswith(f"it goes on: {SENTENCE}")


async def test_submit_wait_says_it_when_it_becomes_known_and_goes_on(service: Service) -> None:
    async with listening(service) as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "penstock.cli", "submit", "echo", "hello", "--wait", "--url", server.url,
            env={**os.environ, "COLUMNS": "200"}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stderr is not None
        lines = (line.decode().strip() async for line in process.stderr)
        name = (await anext(lines)).removeprefix("job ")
        await publish(service, ILL)
        await look(service, {"id": name})
        assert await anext(lines) == SENTENCE
        await publish(service, ECHO)
        await service.succeed(await service.claim())
        assert await asyncio.wait_for(process.wait(), 20) == 0
