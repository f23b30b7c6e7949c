"""Admission control: which submissions it rejects without reading them, and which pass."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from penstock.api.access import SCOPES
from penstock.api.admission.concurrency import MAX_CONCURRENT, MAX_WAITING
from penstock.api.admission.control import limited_route
from penstock.api.admission.rate_limit import BURST
from penstock.api.services import Services
from penstock.api_keys import Scope, new_key
from penstock.storage.journal.api_keys import put_key
from tests.support.api_server import listening
from tests.support.service import Service, assert_problem, serving
from tests.support.valkey import ValkeyProcess, start_valkey

JOB = {"model": "echo", "input": {"text": "x"}}
UNREADABLE: dict[str, Any] = {"content": b"not looked at", "headers": {"content-type": "text/plain"}}


def services(service: Service) -> Services:
    found: Services = service.app.state.services
    return found


@asynccontextmanager
async def crowd(service: Service, tenant: str) -> AsyncIterator[None]:
    """Fill the concurrency limit and the waiting queue with submissions of one tenant."""
    limit, over = services(service).concurrency, asyncio.Event()

    async def submission() -> None:
        async with limit.acquire(tenant):
            await over.wait()

    crowded = [asyncio.create_task(submission()) for _ in range(MAX_CONCURRENT + MAX_WAITING)]
    while limit.waiting(tenant) < MAX_WAITING:
        await asyncio.sleep(0)
    try:
        yield
    finally:
        over.set()
        await asyncio.gather(*crowded)


async def test_a_tenant_at_its_limit_is_refused_unread(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, max_tenant_jobs=1) as service:
        assert (await service.http.post("/v1/jobs", json=JOB)).status_code == 202
        assert (await service.http.post("/v1/jobs", **UNREADABLE)).status_code == 415
        told = await service.http.post("/v1/jobs", json=JOB)
        assert_problem(told, 429, "too_many_jobs")

        again = await service.http.post("/v1/jobs", **UNREADABLE)

        assert_problem(again, 429, "too_many_jobs")
        assert int(again.headers["retry-after"]) >= 1
        metrics = (await service.http.get("/metrics")).text
        assert 'penstock_http_requests_total{method="POST",route="/v1/jobs",status="429"} 2.0' in metrics


async def test_a_tenant_that_submits_too_fast_is_refused_unread(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, max_tenant_submissions_per_s=0.02) as service:
        assert {(await service.http.post("/v1/jobs", json=JOB)).status_code for _ in range(BURST)} == {202}

        for path in ("/v1/jobs", "/openai/v1/embeddings", "/v1/batches", "/openai/v1/batches", "/v1/jobs/x/retry"):
            refused = await service.http.post(path, **UNREADABLE)
            assert refused.status_code == 429
            assert 45 < int(refused.headers["retry-after"]) <= 50
        assert_problem(await service.http.post("/v1/jobs", json=JOB), 429, "too_many_requests")
        assert (await service.http.get("/v1/jobs")).status_code == 200


async def test_requests_are_counted_under_their_route(service: Service) -> None:
    for body in (json.dumps(JOB), "no JSON"):
        await service.http.post("/v1/jobs", content=body, headers={"content-type": "application/json"})
    metrics = (await service.http.get("/metrics")).text
    for status in (202, 400):
        assert f'penstock_http_requests_total{{method="POST",route="/v1/jobs",status="{status}"}} 1.0' in metrics


async def test_a_full_tenant_may_send_batches(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, max_tenant_jobs=1) as service:
        assert [(await service.http.post("/v1/jobs", json=JOB)).status_code for _ in range(2)] == [202, 429]
        assert (await service.http.post("/v1/batches", **UNREADABLE)).status_code == 415  # looked at


async def test_each_tenant_has_a_rate_of_its_own(valkey: ValkeyProcess, tmp_path: Path) -> None:
    tenants = {"flood": {"max_submissions_per_s": 0.01}}
    async with serving(valkey.url, tmp_path, access="keys", tenants=tenants) as service:
        flood, small = key_of(service, "flood"), key_of(service, "small")
        assert [(await post(service, flood)).status_code for _ in range(BURST + 1)] == [415] * BURST + [429]
        assert [(await post(service, small)).status_code for _ in range(2 * BURST)] == [415] * 2 * BURST


async def test_a_rate_holds_over_all_api_processes(valkey: ValkeyProcess, tmp_path: Path) -> None:
    tenants = {"flood": {"max_submissions_per_s": 0.01}}
    options = {"access": "keys", "tenants": tenants, "secret": "one of all processes, 32 bytes long"}
    async with (
        serving(valkey.url, tmp_path, **options) as one,
        serving(valkey.url, tmp_path, **options) as other,
    ):
        key = {"Authorization": f"Bearer {key_of(one, 'flood')}"}
        for number in range(BURST):
            service = (one, other)[number % 2]
            told = await service.http.post("/v1/jobs", json=JOB, headers=key)
            assert told.status_code == 202, told.text
        for service in (one, other):
            told = await service.http.post("/v1/jobs", json=JOB, headers=key)
            assert_problem(told, 429, "too_many_requests")
            assert 90 < int(told.headers["retry-after"]) <= 100
            # This process knows now: the next one is refused without a look at Redis.
            assert services(service).rate_limit.excess("flood") is not None


async def test_a_rate_that_redis_cannot_count_is_told(tmp_path: Path) -> None:
    valkey = start_valkey(tmp_path / "valkey")
    async with serving(valkey.url, tmp_path, max_tenant_submissions_per_s=100) as service:
        valkey.stop()
        assert_problem(await service.http.post("/v1/jobs", json=JOB), 503, "redis_unavailable")


async def test_a_repetition_finds_its_job_though_its_tenant_is_at_its_limit(
    valkey: ValkeyProcess, tmp_path: Path
) -> None:
    async with serving(valkey.url, tmp_path, max_tenant_jobs=1) as service:
        headers = {"Idempotency-Key": "first"}
        made = await service.http.post("/v1/jobs", json=JOB, headers=headers)
        assert (await service.http.post("/v1/jobs", json=JOB)).status_code == 429

        again = await service.http.post("/v1/jobs", json=JOB, headers=headers)
        other = await service.http.post("/v1/jobs", json=JOB, headers={"Idempotency-Key": "second"})

        assert (again.status_code, again.json()["id"]) == (202, made.json()["id"])
        assert_problem(other, 429, "too_many_jobs")


async def test_there_is_room_again_when_a_job_has_ended(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, max_tenant_jobs=1) as service:
        await service.http.post("/v1/jobs", json=JOB)
        assert (await service.http.post("/v1/jobs", json=JOB)).status_code == 429
        claim = await service.claim()
        await service.succeed(claim)
        while services(service).refusals.recent("default") is not None:
            await asyncio.sleep(0.01)

        assert (await service.http.post("/v1/jobs", json=JOB)).status_code == 202


async def test_a_full_line_refuses_its_tenant_unread_and_lets_others_in(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, access="keys") as service:
        keys = {tenant: key_of(service, tenant) for tenant in ("flood", "small")}
        async with crowd(service, "flood"):
            refused = await post(service, keys["flood"])
            let_in = await post(service, keys["small"])
            stranger = await post(service, keys["small"][:-1] + "?")
            reader = await post(service, key_of(service, "flood", Scope.READ))

    problem = assert_problem(refused, 503, "overloaded")
    assert problem["retryable"]
    assert refused.headers["retry-after"] == "1"
    assert let_in.status_code == 415  # looked at
    assert_problem(stranger, 401, "unauthorized")
    assert_problem(reader, 403, "insufficient_scope")


async def test_a_client_that_leaves_the_line_loses_its_turn(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path) as service, listening(service) as server:
        limit = services(service).concurrency
        async with asyncio.timeout(20), AsyncExitStack() as places:
            for _ in range(MAX_CONCURRENT):
                await places.enter_async_context(limit.acquire("other"))
            writers = []
            for path in ("/v1/jobs", "/ogc/processes/echo/execution"):
                _, writer = await asyncio.open_connection("127.0.0.1", urlsplit(server.url).port)
                body = json.dumps({**JOB, "inputs": JOB["input"]} if "ogc" in path else JOB).encode()
                head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                writers.append(writer)
            while limit.waiting("default") < len(writers):
                await asyncio.sleep(0.01)
            for writer in writers:
                writer.close()
            while limit.any_waiting:
                await asyncio.sleep(0.01)
        assert (await service.http.get("/v1/jobs")).json()["jobs"] == []
        assert (await service.http.post("/v1/jobs", json=JOB)).status_code == 202


#: Each interface's names for our own `overloaded` and `too_many_jobs`.
FACADES = {
    "/pooling": ("Service Unavailable", "Too Many Requests"),
    "/score": ("Service Unavailable", "Too Many Requests"),
    "/v2/rerank": ("Service Unavailable", "Too Many Requests"),
    "/classify": ("Service Unavailable", "Too Many Requests"),
    "/openai/v1/chat/completions": ("overloaded", "rate_limit_exceeded"),
    "/openai/v1/responses": ("overloaded", "rate_limit_exceeded"),
    "/openai/v1/completions": ("overloaded", "rate_limit_exceeded"),
    "/openai/v1/embeddings": ("overloaded", "rate_limit_exceeded"),
    "/openai/v1/images/generations": ("overloaded", "rate_limit_exceeded"),
    "/openai/v1/images/edits": ("overloaded", "rate_limit_exceeded"),
    "/openai/v1/audio/transcriptions": ("overloaded", "rate_limit_exceeded"),
    "/openai/v1/audio/translations": ("overloaded", "rate_limit_exceeded"),
    "/ogc/processes/echo/execution": ("overloaded", "too_many_jobs"),
}


@pytest.mark.parametrize("path", FACADES)
async def test_facades_are_under_admission_control_and_refuse_in_their_own_words(
    valkey: ValkeyProcess, tmp_path: Path, path: str
) -> None:
    async with serving(valkey.url, tmp_path, max_tenant_jobs=1) as service:
        looked_at = await service.http.post(path, **UNREADABLE)
        async with crowd(service, "default"):
            crowded = await service.http.post(path, **UNREADABLE)
        await service.submit()
        assert (await service.http.post("/v1/jobs", json=JOB)).status_code == 429
        full = await service.http.post(path, **UNREADABLE)
        metrics = (await service.http.get("/metrics")).text

    assert looked_at.status_code == (400 if path.endswith("/edits") else 415)
    for refused, status, word in zip((crowded, full), (503, 429), FACADES[path], strict=True):
        assert refused.status_code == status
        assert word_of(refused) == word
        assert int(refused.headers["retry-after"]) >= 1
        route = path.replace("/echo/", "/{process_id}/")
        assert f'penstock_http_requests_total{{method="POST",route="{route}",status="{status}"}} 1.0' in metrics


def word_of(refused: httpx2.Response) -> str:
    """Return what an interface calls an error: vLLM's by its type, OpenAI's and our own by its code."""
    body = refused.json()
    error = body.get("error", body)
    return str(error["type"] if isinstance(error["code"], int) else error["code"])


async def test_a_tenant_that_ogc_found_full_is_refused_everywhere(valkey: ValkeyProcess, tmp_path: Path) -> None:
    execute: dict[str, Any] = {"json": {"inputs": {"text": "x"}}, "headers": {"Prefer": "respond-async"}}
    async with serving(valkey.url, tmp_path, max_tenant_jobs=1) as service:
        assert (await service.http.post("/ogc/processes/echo/execution", **execute)).status_code == 201
        assert (await service.http.post("/ogc/processes/echo/execution", **execute)).status_code == 429
        assert_problem(await service.http.post("/v1/jobs", **UNREADABLE), 429, "too_many_jobs")


#: Routes that submit one job at once, including those of the facades.
SUBMITTING = {
    ("POST", "/v1/jobs"),
    ("PUT", "/v1/jobs/{job_id}"),
    ("POST", "/pooling"),
    ("POST", "/score"),
    ("POST", "/v1/score"),
    ("POST", "/rerank"),
    ("POST", "/v1/rerank"),
    ("POST", "/v2/rerank"),
    ("POST", "/classify"),
    ("POST", "/openai/v1/chat/completions"),
    ("POST", "/openai/v1/responses"),
    ("POST", "/openai/v1/completions"),
    ("POST", "/openai/v1/embeddings"),
    ("POST", "/openai/v1/images/generations"),
    ("POST", "/openai/v1/images/edits"),
    ("POST", "/openai/v1/audio/transcriptions"),
    ("POST", "/openai/v1/audio/translations"),
    ("POST", "/ogc/processes/{process_id}/execution"),
    ("POST", "/runpod/v2/{endpoint}/run"),
    ("POST", "/runpod/v2/{endpoint}/runsync"),
}
RATE_ONLY = {
    # Their jobs are created as there is room, under a limit of their own.
    ("POST", "/v1/batches"),
    ("POST", "/openai/v1/batches"),
    ("POST", "/v1/subscriptions"),
    ("POST", "/v1/subscriptions/{name}/pause"),
    ("POST", "/v1/subscriptions/{name}/resume"),
    # Reads no body, and finds the retry that was made before.
    ("POST", "/v1/jobs/{job_id}/retry"),
    ("POST", "/runpod/v2/{endpoint}/retry/{job_id}"),
}


def test_all_that_makes_jobs_is_under_admission_control() -> None:
    found = {route: limited for route in SCOPES if (limited := limited_route(*route)) is not None}
    assert {route for route, limited in found.items() if limited.submits} == SUBMITTING
    assert {route for route, limited in found.items() if not limited.submits} == RATE_ONLY
    assert all(limited.path == path for (_, path), limited in found.items())
    assert {SCOPES[route] for route in found} == {Scope.SUBMIT}


async def post(service: Service, key: str) -> httpx2.Response:
    headers = {**UNREADABLE["headers"], "Authorization": f"Bearer {key}"}
    return await service.http.post("/v1/jobs", content=UNREADABLE["content"], headers=headers)


def key_of(service: Service, tenant: str, *scopes: Scope) -> str:
    record, text = new_key(
        service.settings.signing_secret, tenant=tenant, name="", scopes=scopes or Scope, created_s=0, expires_s=None
    )
    put_key(service.objects, record)
    return text
