"""A job's events: the list, and the live stream through a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.jobs import Phase, Progress
from penstock.storage.redis import records, streaming
from tests.support.api_server import Server, listening
from tests.support.service import Service, assert_problem, serving
from tests.support.valkey import ValkeyProcess

JSON = {"Accept": "application/json"}


@dataclass(frozen=True)
class Message:
    """A server-sent event."""

    event: str
    id: str | None
    data: dict[str, Any]


async def messages(response: httpx2.Response) -> AsyncIterator[Message]:
    """Read the events of a stream, without its comments."""
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            yield Message(fields["event"], fields.get("id"), json.loads(fields["data"]))
            fields = {}


async def read_all(server: Server, job_id: str, **headers: str) -> list[Message]:
    """Read a job's stream to its end."""
    async with (
        httpx2.AsyncClient(timeout=20) as http,
        http.stream("GET", f"{server.url}/v1/jobs/{job_id}/events", headers=headers) as response,
    ):
        assert response.headers["content-type"].startswith("text/event-stream")
        return [message async for message in messages(response)]


async def test_the_list_tells_what_happened_so_far(service: Service) -> None:
    job = await service.submit()
    claim = await service.claim()
    await service.succeed(claim)
    response = await service.http.get(job["links"]["events"], headers=JSON)
    events = response.json()["events"]
    assert [event["type"] for event in events] == ["job.created", "job.started", "job.succeeded"]
    assert events[1]["data"] == {"attempt": 1, "worker": "w", "fence": str(claim.fence)}
    later = await service.http.get(job["links"]["events"], headers={**JSON, "Last-Event-ID": events[0]["id"]})
    assert later.json()["events"] == events[1:]


@pytest.mark.parametrize("last", ["x", "1", "1-", "-1", "1-x", "1-1-1", "$", "9" * 40 + "-0", "²-0"])
async def test_a_last_event_id_that_is_none_is_refused(service: Service, last: str) -> None:
    job = await service.submit()
    response = await service.http.get(job["links"]["events"], headers={b"Last-Event-ID": last.encode()})
    assert_problem(response, 422, "invalid_request")


async def test_text_in_the_making_is_told_as_it_was_said(service: Service) -> None:
    job = await service.submit()
    claim = await service.claim()
    for at, piece in ((0, "so far, "), (8, 'ünd "so" on')):
        assert await service.jobs.run(streaming.stream_text(claim, piece, at=at))
    await service.succeed(claim)
    async with listening(service) as server:
        told = [message.data["data"] for message in await read_all(server, job["id"]) if message.event == "job.text"]
    assert told == [
        {"text": "so far, ", "at": 0, "attempt": 1},
        {"text": 'ünd "so" on', "at": 8, "attempt": 1},
    ]


async def test_the_stream_begins_with_the_job_and_ends_with_it(service: Service) -> None:
    job = await service.submit()
    seen: list[Message] = []
    async with (
        listening(service) as server,
        httpx2.AsyncClient(timeout=20) as http,
        http.stream("GET", f"{server.url}/v1/jobs/{job['id']}/events") as response,
    ):
        stream = messages(response)
        seen += [await anext(stream), await anext(stream)]
        claim = await service.claim()
        seen.append(await anext(stream))
        await service.jobs.run(records.heartbeat(claim, Phase.INFERRING, Progress(1, 2, "tiles")))
        seen.append(await anext(stream))
        await service.succeed(claim)
        seen += [message async for message in stream]
    assert [message.event for message in seen] == [
        "snapshot", "job.created", "job.started", "job.progress", "job.succeeded"
    ]  # fmt: skip
    assert seen[0].id is None
    assert (seen[0].data["id"], seen[0].data["status"]) == (job["id"], "queued")
    assert (seen[3].data["data"]["done"], seen[3].data["data"]["total"]) == (1, 2)
    assert all(message.id == message.data["id"] for message in seen[1:])


async def test_a_reader_that_comes_back_gets_what_it_missed(service: Service) -> None:
    job = await service.submit()
    await service.succeed(await service.claim())
    async with listening(service) as server:
        whole = await read_all(server, job["id"])
        assert whole[1].id is not None
        rest = await read_all(server, job["id"], **{"Last-Event-ID": whole[1].id})
        assert whole[-1].id is not None
        nothing = await read_all(server, job["id"], **{"Last-Event-ID": whole[-1].id})
    assert [message.event for message in rest] == ["snapshot", "job.started", "job.succeeded"]
    assert [message.event for message in nothing] == ["snapshot"]
    assert nothing[0].data["status"] == "succeeded"


async def test_a_reader_whose_events_were_trimmed_has_the_snapshot_in_their_place(service: Service) -> None:
    job = await service.submit()
    claim = await service.claim()
    events = (await service.http.get(job["links"]["events"], headers=JSON)).json()["events"]
    await service.jobs.run(records.heartbeat(claim, Phase.INFERRING, Progress(1, 2, "tiles")))
    await service.succeed(claim)
    await service.jobs.client.xtrim(f"penstock:tenant:default:job:{job['id']}:events", maxlen=1, approximate=False)
    async with listening(service) as server:
        rest = await read_all(server, job["id"], **{"Last-Event-ID": events[0]["id"]})
    assert [message.event for message in rest] == ["snapshot", "job.succeeded"]
    assert (rest[0].data["status"], rest[0].data["progress"]["done"]) == ("succeeded", 1)


@pytest.mark.slow
@pytest.mark.breadth  # it waits for 15 s
async def test_a_quiet_stream_is_kept_alive(service: Service) -> None:
    job = await service.submit()
    async with (
        listening(service) as server,
        httpx2.AsyncClient(timeout=60) as http,
        http.stream("GET", f"{server.url}/v1/jobs/{job['id']}/events") as response,
    ):
        lines = response.aiter_lines()
        async for line in lines:
            if line.startswith(": ping"):
                break
        await service.succeed(await service.claim())
        told = [line.removeprefix("event: ") async for line in lines if line.startswith("event: ")]
        assert told == ["job.started", "job.succeeded"]


async def test_a_stream_longer_than_a_page_is_told_whole(service: Service) -> None:
    job = await service.submit()
    name = f"penstock:tenant:default:job:{job['id']}:events"
    pipe = service.jobs.client.pipeline(transaction=False)
    for n in range(700):
        pipe.xadd(name, {"type": "job.progress", "data": json.dumps({"done": n})})
    await pipe.execute()
    response = await service.http.get(job["links"]["events"], headers=JSON)
    done = [event["data"]["done"] for event in response.json()["events"][1:]]
    assert done == list(range(700))


async def test_a_stopping_server_does_not_wait_for_its_streams(service: Service) -> None:
    job = await service.submit()
    async with httpx2.AsyncClient(timeout=20) as http:
        async with listening(service) as server:
            request = http.build_request("GET", f"{server.url}/v1/jobs/{job['id']}/events")
            response = await http.send(request, stream=True)
            stream = messages(response)  # httpx2 closes a response when its iterator is dropped
            assert (await anext(stream)).event == "snapshot"
        assert not response.is_closed  # and yet the server has stopped
        await response.aclose()


async def test_a_stopping_server_sends_those_who_wait_away(service: Service) -> None:
    job = await service.submit()
    async with httpx2.AsyncClient(timeout=20) as http:
        async with listening(service) as server:
            waiting = asyncio.create_task(http.get(f"{server.url}/v1/jobs/{job['id']}?wait=60"))
            while not server.server_state.tasks:
                await asyncio.sleep(0)
        response = await waiting
    assert_problem(response, 503, "not_ready")
    assert response.headers["retry-after"] == "1"


async def test_the_stream_outlives_the_subscriptions_connection(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path) as service:
        job = await service.submit()
        async with (
            listening(service) as server,
            httpx2.AsyncClient(timeout=20) as http,
            http.stream("GET", f"{server.url}/v1/jobs/{job['id']}/events") as response,
        ):
            stream = messages(response)
            assert (await anext(stream)).event == "snapshot"
            while not await service.jobs.client.client_kill_filter(_type="pubsub"):
                await asyncio.sleep(0)  # not subscribed yet
            await service.succeed(await service.claim())
            assert [message.event async for message in stream][-1] == "job.succeeded"
