"""The short way of a plain submission gives the answers of the long way."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.api.short_cycle import ShortCycle
from penstock.api_keys import Scope
from tests.integration.test_admission import key_of
from tests.integration.test_connections import connected, request
from tests.support.service import Service, serving
from tests.support.valkey import ValkeyProcess

JOB: dict[str, Any] = {"model": "echo", "input": {"text": "x"}}
#: A header that sends a request the long way and changes nothing else: an invalid one is ignored.
LONG = {"traceparent": "none"}
#: Fields of a job that differ between two jobs of the same request.
OWN = ("id", "links", "created_at", "queue_position", "eta_seconds")

BODIES = {
    "plain": json.dumps(JOB).encode(),
    "all fields": json.dumps({
        **JOB, "metadata": {"a": "ü"}, "priority": "high", "queue_ttl": 60, "execution_timeout": 7.5,
        "webhook": {"url": "http://files.test:80/hook", "events": ["job.succeeded"]},
    }).encode(),
    "alias": b'{"model": "parrot", "input": {"text": "\\u00fc\\ud83d\\ude00", "count": 3}}',
    "unknown model": b'{"model": "none", "input": {"text": "x"}}',
    "broken model": b'{"model": "broken", "input": {"text": "x"}}',
    "wrong input": b'{"model": "echo", "input": {"text": 1, "more": {}, "other": 2}}',
    "wrong fields": b'{"model": "", "input": [], "colour": 1}',
    "no such upload": b'{"model": "echo", "input": {"text": "x", "scene": "media://none"}}',
    "receiver": b'{"model": "echo", "input": {"text": "x"}, "webhook": {"url": "ftp://a"}}',
    "no JSON": b'{"model": "echo",',
    "twice": b'{"model": "echo", "model": "echo"}',
    "nan": b'{"model": "echo", "input": {"text": NaN}}',
    "no UTF-8": b'{"model": "\xff"}',
    "empty": b"",
    "large": json.dumps({"model": "echo", "input": {"text": "x" * 70_000}}).encode(),
    "many": json.dumps({"model": "echo", "input": {"text": "x", "more": [{}] * 600}}).encode(),
}  # fmt: skip
HEADERS: dict[str, dict[str, str]] = {
    "none": {},
    "other type": {"content-type": "text/plain"},
    "empty key": {"idempotency-key": ""},
    "long key": {"idempotency-key": "k" * 256},
    "other host": {"host": "evil.test"},
    "other origin": {"origin": "http://evil.test"},
    "no time to wait": {"prefer": "respond-async, wait=0"},
    "no preference": {"prefer": "wait=soon"},
}


def told(response: httpx2.Response) -> tuple[int, dict[str, str], Any]:
    """Return what both ways must have in common."""
    body = response.json()
    job_id = body.get("id", "no id")
    headers = {
        name: value.replace(job_id, "ID") for name, value in response.headers.items() if name != "content-length"
    }
    return response.status_code, headers, {name: value for name, value in body.items() if name not in OWN}


async def both(service: Service, body: bytes, headers: dict[str, str]) -> tuple[httpx2.Response, httpx2.Response]:
    """Send a request both ways."""
    sent = {"content-type": "application/json", **headers}
    short = await service.http.post("/v1/jobs", content=body, headers=sent)
    return short, await service.http.post("/v1/jobs", content=body, headers=sent | LONG)


@pytest.mark.parametrize("name", BODIES)
async def test_the_answers_are_the_same(service: Service, name: str) -> None:
    short, long = await both(service, BODIES[name], {})
    assert told(short) == told(long)
    if short.status_code == 202:
        assert list(short.json()) == list(long.json())


@pytest.mark.parametrize("name", HEADERS)
async def test_headers_count_the_same(service: Service, name: str) -> None:
    short, long = await both(service, BODIES["plain"], HEADERS[name])
    assert told(short) == told(long)


async def test_a_repeated_request_finds_its_job_either_way(service: Service) -> None:
    key = {"idempotency-key": "k"}
    first, again = await both(service, BODIES["plain"], key)
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json()["id"] == again.json()["id"]
    assert again.headers["idempotency-replayed"] == "true"
    short, long = await both(service, BODIES["alias"], key)
    assert short.json()["code"] == "idempotency_mismatch"
    assert told(short) == told(long)


async def test_a_submission_waits_for_its_end_either_way(service: Service) -> None:
    async def ended(headers: dict[str, str]) -> httpx2.Response:
        sent = {"content-type": "application/json", "prefer": "wait=60", **headers}
        waiting = asyncio.create_task(service.http.post("/v1/jobs", content=BODIES["plain"], headers=sent))
        await asyncio.to_thread(service.hints.get, timeout=30)
        await service.succeed(await service.claim(), "done")
        return await waiting

    short, long = await ended({}), await ended(LONG)
    assert (short.status_code, short.headers["preference-applied"]) == (200, "wait=60")
    assert short.json()["output"]["text"] == "done"
    assert list(short.json()) == list(long.json())
    (status, headers, job), (_, same, other) = told(short), told(long)
    changing = ("attempts", "metrics", "started_at", "completed_at", "expires_at", "phases", "usage")
    assert (status, headers) == (long.status_code, same)
    assert {name: each for name, each in job.items() if name not in changing} == {
        name: each for name, each in other.items() if name not in changing
    }


async def test_keys_count_the_same(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, access="keys") as service:
        allowed, reader = key_of(service, "t", Scope.SUBMIT), key_of(service, "t", Scope.READ)
        for text in (allowed, allowed, reader, reader, "wrong"):
            short, long = await both(service, BODIES["plain"], {"authorization": f"Bearer {text}"})
            assert told(short) == told(long)


async def test_requests_are_counted_under_their_route(service: Service) -> None:
    for body in (BODIES["plain"], BODIES["no JSON"]):
        await service.http.post("/v1/jobs", content=body, headers={"content-type": "application/json"})
    metrics = (await service.http.get("/metrics")).text
    for status in (202, 400):
        assert f'penstock_http_requests_total{{method="POST",route="/v1/jobs",status="{status}"}} 1.0' in metrics


async def test_requests_in_one_piece_are_answered_in_order(service: Service) -> None:
    async with connected(service) as wire:
        wire.writer.write(request())
        await asyncio.sleep(0)
        wire.writer.write(request("X: second", body=b"{}") + request(method="GET", body=b""))
        assert [(await wire.read())[0] for _ in range(3)] == [202, 422, 200]


async def test_a_short_request_is_answered_before_the_server_stops() -> None:
    closed: list[tuple[int, list[tuple[bytes, bytes]], bytes]] = []
    cycle = ShortCycle({"type": "http", "path": "/"}, b"{}", lambda *answer: closed.append(answer))
    cycle.keep_alive = False  # as `shutdown` of uvicorn's protocol does

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["body"] == b"{}"
        await send({"type": "http.response.start", "status": 202, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": b"yes"})

    await cycle.run(app)
    assert closed == [(202, [(b"a", b"b"), (b"connection", b"close"), (b"content-length", b"3")], b"yes")]


async def test_a_crash_of_the_app_is_answered() -> None:
    answers: list[Any] = []
    cycle = ShortCycle({"type": "http", "path": "/"}, b"{}", lambda *answer: answers.append(answer))

    async def app(*_: Any) -> None:
        raise RuntimeError

    await cycle.run(app)
    assert answers[0][0] == 500
