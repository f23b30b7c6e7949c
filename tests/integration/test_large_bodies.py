"""Large bodies: at most a hundred errors are reported, names are counted before validation, other clients go on."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.api.isolation import Isolation
from penstock.json_body import MAX_ISSUES, MAX_NAMES
from tests.support.service import Service, assert_problem, serving
from tests.support.valkey import ValkeyProcess

#: Way in -> the rest of a body beside the attack's fields.
WAYS: dict[str, dict[str, Any]] = {
    "/v1/jobs": {"model": "echo", "input": {"text": "x"}},
    "/v1/batches": {"requests": [{"model": "echo", "input": {"text": "x"}}]},
    "/v1/uploads": {"filename": "a.tif", "content_type": "image/tiff", "size_bytes": 10},
    "/v1/webhook-endpoints": {"url": "http://files.test/"},
    "/openai/v1/chat/completions": {"model": "echo", "messages": [{"role": "user", "content": "x"}]},
    "/openai/v1/responses": {"model": "echo", "input": "x"},
    "/openai/v1/embeddings": {"model": "echo", "input": "x"},
    "/openai/v1/images/generations": {"model": "echo", "prompt": "x"},
    "/openai/v1/batches": {"input_file_id": "x", "endpoint": "/v1/embeddings", "completion_window": "24h"},
    "/pooling": {"model": "echo", "data": {"data": "x", "data_format": "url"}},
    "/score": {"model": "echo", "queries": "x", "documents": ["y"]},
    "/rerank": {"model": "echo", "query": "x", "documents": ["y"]},
    "/classify": {"model": "echo", "input": "x"},
    "/ogc/processes/echo/execution": {"inputs": {"text": "x"}},
}
MIXED = 8000


def mixed(way: str) -> dict[str, Any]:
    """Return a body with as many unknown fields as wrong values."""
    numbers = {f"m{n}": n for n in range(MIXED)}
    return {**WAYS[way], **{f"unknown{n}": n for n in range(MIXED)}, "metadata": numbers}


class Held:
    """The longest time for which the event loop did not run."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Held:
        """Begin to watch."""
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        """End watching."""
        assert self._watching is not None
        self._watching.cancel()

    async def _watch(self) -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(0.001)
            self.longest_s = max(self.longest_s, time.perf_counter() - begun)


def post(service: Service, way: str, body: bytes) -> Any:
    return service.http.post(way, content=body, headers={"Content-Type": "application/json"}, timeout=120)


@pytest.mark.breadth(but=("/v1/jobs",))
@pytest.mark.parametrize("way", WAYS)
async def test_too_many_names_are_refused_uninterpreted_on_each_way_in(service: Service, way: str) -> None:
    body = json.dumps({**WAYS[way], **{f"{n:x}": 1 for n in range(MAX_NAMES)}}, separators=(",", ":")).encode()
    response: httpx2.Response = await post(service, way, body)
    assert response.status_code == 400
    assert f"more than {MAX_NAMES} names" in response.text


async def test_at_most_a_hundred_errors_are_told(service: Service) -> None:
    response = await post(service, "/v1/jobs", json.dumps(mixed("/v1/jobs")).encode())
    assert len(assert_problem(response, 422, "invalid_request")["errors"]) == MAX_ISSUES


@pytest.mark.alone
@pytest.mark.breadth(but=("/v1/jobs", "/v1/batches"))
@pytest.mark.parametrize("way", WAYS)
async def test_the_event_loop_goes_on_beside_a_large_invalid_body(service: Service, way: str) -> None:
    body = json.dumps(mixed(way)).encode()
    async with Held() as held:
        response = await post(service, way, body)
    # OpenAI's ways, /pooling and OGC ignore unknown fields.
    assert response.status_code in (201, 400, 404, 422), response.text
    assert held.longest_s < 0.25


@pytest.mark.alone
async def test_the_event_loop_goes_on_beside_a_large_input(service: Service) -> None:
    body = json.dumps({"model": "echo", "input": {"text": "x", "more": [{"file": 1, "x": 2}] * 15_000}}).encode()
    async with Held() as held:
        response = await post(service, "/v1/jobs", body)
    assert assert_problem(response, 422, "invalid_request")["detail"].startswith("the input does not fit echo")
    assert held.longest_s < 0.25


async def test_a_large_valid_input_becomes_a_job_and_its_repetition_finds_it(service: Service) -> None:
    value = {"text": "x", "more": [{}] * 1500}
    headers = {"Idempotency-Key": "large"}
    made, again = [
        await service.http.post("/v1/jobs", json={"model": "echo", "input": value}, headers=headers) for _ in range(2)
    ]
    assert (made.status_code, again.status_code) == (202, 202)
    assert made.json()["id"] == again.json()["id"]
    assert made.json()["input"] == value
    other = {"model": "echo", "input": {**value, "text": "y"}}
    assert_problem(await service.http.post("/v1/jobs", json=other, headers=headers), 422, "idempotency_mismatch")


@pytest.mark.breadth
async def test_ogc_checks_large_inputs_in_its_own_words(service: Service) -> None:
    body = {"inputs": {"text": "x", "more": [{"value": {"file": 1}}] * 1500}}
    response = await service.http.post("/ogc/processes/echo/execution", json=body)
    assert response.status_code == 400
    assert "/inputs/more/0/file" in response.text


async def test_a_body_that_takes_too_long_is_refused_and_others_go_on(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, max_body_bytes=10_000_000) as service:
        # The kernel counts whole seconds: the work takes many more.
        service.swap(isolation=Isolation(1, cpu_s=0.01, deadline_factor=1e8))
        value = {"text": "x", "more": [{}] * 2_000_000}
        body = json.dumps({"model": "echo", "input": value}, separators=(",", ":")).encode()
        refused = await post(service, "/v1/jobs", body)
        small = await service.http.post("/v1/jobs", json=WAYS["/v1/jobs"])
    assert "send less at a time" in assert_problem(refused, 413, "payload_too_large")["detail"]
    assert small.status_code == 202
