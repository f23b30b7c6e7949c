"""Timeouts of the client and the command line: for a job, and for a service that is not ready yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime

import httpx2
import pytest
from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send

from penstock.client import AsyncClient, Client, ClientError, Event, StillRunning
from penstock.jobs import Phase, Progress
from penstock.storage.redis import catalogues, records
from penstock.storage.redis.catalogues import CHECKING
from tests.support.api_server import Server, listening
from tests.support.command_line import Shell
from tests.support.service import ECHO, Service, assert_problem
from tests.support.web_server import Server as Web
from tests.support.web_server import reply

CHECKED_LATER = ECHO.model_copy(update={"problem": CHECKING, "input_schema": {}, "ready": False})


class Unready:
    """The app, which says when it first answered that it is not ready."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self.said = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def watched(message: Message) -> None:
            await send(message)
            if message.get("status") == 503:
                self.said.set()

        await self._app(scope, receive, watched)


async def publish(service: Service, *entries: catalogues.CatalogueEntry) -> None:
    """Tell the service of these models and no other."""
    await service.jobs.run(catalogues.publish(entries, worker="w", queues=["default"], alive_s=600))


async def forget_models(service: Service) -> None:
    """Make it a service whose workers told of nothing yet."""
    names = ["penstock:catalogue", "penstock:catalogue:ranks", "penstock:publishers", "penstock:published:w"]
    await service.jobs.client.delete(*names)


@pytest.fixture
async def server(service: Service) -> AsyncIterator[Server]:
    async with listening(service) as running:
        yield running


async def test_a_model_that_is_still_checked_is_asked_for_again(service: Service) -> None:
    await forget_models(service)
    await publish(service, CHECKED_LATER)
    refused = await service.http.get("/v1/models/echo")
    assert assert_problem(refused, 503, "not_ready")["retryable"] is True
    assert int(refused.headers["retry-after"]) >= 1

    app = Unready(service.app)
    async with AsyncClient(service.settings.base_url, patience_s=30, transport=httpx2.ASGITransport(app)) as client:
        asked = asyncio.create_task(client.model("parrot"))
        await app.said.wait()
        await publish(service, ECHO)
        assert (await asked).input_schema == ECHO.input_schema


async def test_before_any_worker_has_told_of_its_models_none_is_unknown(service: Service) -> None:
    await forget_models(service)
    refused = await service.http.get("/v1/models/echo")
    assert_problem(refused, 503, "not_ready")
    assert int(refused.headers["retry-after"]) >= 1
    assert (await service.http.get("/v1/models")).json() == {"models": []}


async def test_a_submit_right_after_the_start_waits_for_the_models_check(service: Service) -> None:
    await forget_models(service)
    app = Unready(service.app)
    async with listening(replace(service, app=app)) as server:  # type: ignore[arg-type]  # an app all the same
        command = asyncio.create_task(Shell({"PENSTOCK_URL": server.url})("submit", "echo", "hello", "--json"))
        await app.said.wait()
        await publish(service, ECHO)
        done = await command
    assert done.code == 0, done.err
    assert done.document()["input"] == {"text": "hello"}


async def test_a_wait_ends_when_its_time_is_over_and_the_job_goes_on(service: Service, server: Server) -> None:
    job = await service.submit()
    async with AsyncClient(server.url) as client:
        with pytest.raises(StillRunning, match=f"job {job['id']} is queued after 0.3 s") as ended:
            await client.wait(job["id"], timeout_s=0.3)
        assert isinstance(ended.value, TimeoutError)
        assert ended.value.job.id == job["id"]
        with Client(server.url) as blocking:
            with pytest.raises(StillRunning):
                await asyncio.to_thread(blocking.wait, job["id"], timeout_s=0)
            await service.succeed(await service.claim())
            assert (await asyncio.to_thread(blocking.wait, job["id"], timeout_s=0)).succeeded
        assert (await client.wait(job["id"], timeout_s=0)).succeeded
        with pytest.raises(ClientError, match="0 or more"):
            await client.wait(job["id"], timeout_s=-1)


async def test_a_followed_wait_ends_in_the_middle_of_a_quiet_stream(service: Service, server: Server) -> None:
    job = await service.submit()
    claim = await service.claim()
    await service.jobs.run(records.heartbeat(claim, Phase.INFERRING, Progress(1, 2, "tiles")))
    told: list[Event] = []
    async with AsyncClient(server.url) as client:
        with pytest.raises(StillRunning):
            await client.wait(job["id"], timeout_s=0.5, on_event=told.append)
    with Client(server.url) as blocking, pytest.raises(StillRunning):
        await asyncio.to_thread(blocking.wait, job["id"], timeout_s=0.5, on_event=told.append)
    assert [event.type for event in told] == ["snapshot", "job.created", "job.started", "job.progress"] * 2


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (
            reply(302, Location="https://login.example.org/?token=s"),
            r"leads elsewhere \(https://login\.example\.org/\)",
        ),
        (
            reply(200, b"<html>", Content_Type="text/html"),
            r"is not Penstock, or stands before it: its answer \(HTTP 200, text/html\)",
        ),
        (reply(204), r"its answer \(HTTP 204\) is none of Penstock's"),
    ],
)
async def test_what_is_no_stream_of_events_is_said_at_once_and_not_asked_for_again(answer: bytes, says: str) -> None:
    with Web(answer) as web:
        url = f"http://127.0.0.1:{web.port}"
        async with AsyncClient(url, patience_s=3600) as client:
            with pytest.raises(ClientError, match=says):
                await anext(client.events("1"))
        with Client(url, patience_s=3600) as blocking, pytest.raises(ClientError, match=says):
            await asyncio.to_thread(next, blocking.events("1"))
        assert web.accepted == 2


async def test_an_error_of_ones_own_while_following_is_not_taken_for_the_end_of_the_time(
    service: Service, server: Server
) -> None:
    def complain(_: Event) -> None:
        raise TimeoutError("mine")

    job = await service.submit()
    async with AsyncClient(server.url) as client:
        with pytest.raises(TimeoutError, match="mine"):
            await client.wait(job["id"], timeout_s=30, on_event=complain)


async def test_jobs_are_listed_by_metadata_and_time_on_the_command_line(service: Service, server: Server) -> None:
    mine = await service.submit(metadata={"who": "me"})
    await service.submit(metadata={"who": "you"})
    penstock = Shell({"PENSTOCK_URL": server.url})
    found = await penstock("list", "--meta", "who=me", "--after", "2026-01-01", "--json")
    assert [job["id"] for job in found.document()] == [mine["id"]]
    async with AsyncClient(server.url) as client:
        page = await client.jobs(metadata={"who": "me"}, created_after=datetime.fromisoformat(mine["created_at"]))
        assert page.jobs == ()


@pytest.mark.breadth
@pytest.mark.parametrize("time", ["2026-01-01T00:00:00Z", "2026-01-01T00:00Z", "2026-01-01T00:00"])
async def test_a_time_may_be_written_in_several_ways(service: Service, server: Server, time: str) -> None:
    await service.submit()
    found = await Shell({"PENSTOCK_URL": server.url})("list", "--before", time, "--json")
    assert found.document() == []
