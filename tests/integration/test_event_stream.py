"""Both clients on a real stream of events, with what keeps its connection alive in it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator

import pytest

from penstock.client import AsyncClient, Client
from tests.support.web_server import Server, reply

JOB = {"id": "1", "model": "m", "status": "running", "created_at": "2026-01-01T00:00:00Z"}
PING = ": ping - 2026-01-01 00:00:15+00:00\n\n"


def said(kind: str, number: int, data: object) -> str:
    document = {"id": f"{number}-0", "type": kind, "at": "2026-01-01T00:00:00Z", "data": data}
    return f"id: {number}-0\nevent: {kind}\ndata: {json.dumps(document)}\n\n"


STREAM = "".join([
    f"event: snapshot\ndata: {json.dumps(JOB)}\n\n", PING,
    said("job.created", 1, {}), PING, PING,
    "event: notice\ndata: not for us\n\n", "event: notice\ndata: [1]\n\n", "retry: 100\n\n",
    said("job.progress", 2, {"done": 1}), PING,
    said("job.succeeded", 3, {}),
])  # fmt: skip
TYPES = ["snapshot", "job.created", "job.progress", "job.succeeded"]


@pytest.fixture
def service() -> Iterator[Server]:
    with Server(reply(200, STREAM.encode(), Content_Type="text/event-stream")) as server:
        yield server


@pytest.fixture
async def async_client(service: Server) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(f"http://127.0.0.1:{service.port}", patience_s=0) as client:
        yield client


def test_a_job_is_followed_past_what_is_no_event(service: Server) -> None:
    with Client(f"http://127.0.0.1:{service.port}", patience_s=0) as client:
        assert [event.type for event in client.events("1")] == TYPES


async def test_a_job_is_followed_past_what_is_no_event_in_asyncio_too(async_client: AsyncClient) -> None:
    assert [event.type async for event in async_client.events("1")] == TYPES
