"""A dry run answers as a submission would, tells what the job is expected to take, and creates nothing."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.jobs import State, Usage
from penstock.storage.redis.dry_runs import DeviceRate
from penstock.storage.redis.queues import seen
from penstock.storage.redis.records import Outcome
from tests.support.service import Service, assert_problem, serving
from tests.support.valkey import ValkeyProcess

DRY = "/v1/jobs?dry_run=true"
BODY = {"model": "parrot", "input": {"text": "hello"}}
SCENE = "data:image/tiff;base64,SUkq"


@pytest.fixture
async def priced(valkey: ValkeyProcess, tmp_path: Path) -> AsyncIterator[Service]:
    limits: dict[str, Any] = {"max_tenant_jobs": 3, "max_followers": 1}
    async with serving(valkey.url, tmp_path, price_per_device_s=0.5, currency="CHF", **limits) as service:
        yield service


def keys_of(service: Service) -> list[str]:
    return [info.key for info in service.objects.list("")]


async def estimate(service: Service, **body: Any) -> dict[str, Any]:
    answer = await service.http.post(DRY, json={**BODY, **body})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def end(service: Service, device_s: float) -> None:
    """Run the next job, which uses a device for so long."""
    await service.end(await service.claim(), Outcome(State.SUCCEEDED, text="x", usage=Usage(device_s=device_s)))


async def test_a_dry_run_names_the_model_and_stores_nothing(priced: Service) -> None:
    found = await estimate(priced, input={"text": "hello", "scene": SCENE})
    assert (found["object"], found["model"], found["queue"], found["media_bytes"]) == ("estimate", "echo", "default", 3)
    assert (found["device_seconds"], found["price"], found["wait_seconds"]) == (None, None, None)
    assert keys_of(priced) == []
    assert (await priced.http.get("/v1/jobs")).json()["jobs"] == []
    assert await priced.jobs.client.exists("penstock:tenant:default:live", "penstock:reserved") == 0
    assert priced.hints.empty()


async def test_it_tells_the_device_seconds_of_earlier_jobs_and_their_price(priced: Service) -> None:
    rate = DeviceRate()
    for device_s in (1.0, 1.5, 0.8, 1.2):
        await priced.submit()
        await end(priced, device_s)
        rate = rate.after(device_s)
    found = await estimate(priced)
    low, high = rate.interval_s()
    assert found["device_seconds"] == pytest.approx({"low": low, "high": high})
    price = found["price"]
    assert (price["low"], price["high"]) == pytest.approx((low / 2, high / 2), abs=1e-6)
    assert price["currency"] == "CHF"


async def test_jobs_with_media_count_apart_and_by_their_bytes(priced: Service) -> None:
    rate = DeviceRate()
    for size in (3, 30, 90, 300):
        scene = f"data:image/tiff;base64,{'SUkq' * (size // 3)}"
        await priced.submit(input={"text": "hello", "scene": scene})
        await end(priced, size / 10)
        rate = rate.after(size / 10, size)
    low, high = rate.interval_s(600)
    scene = f"data:image/tiff;base64,{'SUkq' * 200}"
    found = await estimate(priced, input={"text": "hello", "scene": scene})
    assert found["media_bytes"] == 600
    assert found["device_seconds"] == pytest.approx({"low": low, "high": high})
    assert (await estimate(priced))["device_seconds"] is None


async def test_it_tells_the_wait_behind_the_jobs_before_it(priced: Service) -> None:
    await priced.submit()
    await end(priced, 1.0)
    await priced.jobs.run(seen("default", "w", 1, alive_s=60))
    first = await estimate(priced)
    for _ in range(2):
        await priced.submit()
    behind, before = await estimate(priced), await estimate(priced, priority="high")
    assert first["wait_seconds"] == before["wait_seconds"] == 0
    assert behind["wait_seconds"] > 0


@pytest.mark.parametrize(
    "body",
    [
        {"model": "nothing"},
        {"model": "broken"},
        {"input": {}},
        {"input": {"text": "x", "count": 0}},
        {"input": {"text": "x", "scene": "media://none/a.tif"}},
        {"input": {"text": "x", "scene": f"data:image/tiff;base64,{'SUkq' * 400}"}},
        {"webhook": {"url": "http://10.0.0.1/"}},
        {"after": [str(uuid.uuid4())]},
        {"unknown": 1},
    ],
)
async def test_it_raises_the_error_of_the_submission(priced: Service, body: dict[str, Any]) -> None:
    real = await priced.http.post("/v1/jobs", json={**BODY, **body})
    dry = await priced.http.post(DRY, json={**BODY, **body})
    assert (dry.status_code, dry.json()) == (real.status_code, real.json())
    assert dry.status_code >= 400


async def test_it_meets_the_limits_of_the_tenant_and_of_chains(priced: Service) -> None:
    first = await priced.submit()
    assert (await estimate(priced, after=[first["id"]]))["model"] == "echo"
    await priced.submit(after=[first["id"]])
    answer = await priced.http.post(DRY, json={**BODY, "after": [first["id"]]})
    assert "max_followers" in assert_problem(answer, 422, "invalid_request")["detail"]
    await priced.submit()
    answer = await priced.http.post(DRY, json=BODY)
    assert_problem(answer, 429, "too_many_jobs")
    assert int(answer.headers["retry-after"]) >= 1


async def test_it_takes_no_form_and_no_key(priced: Service) -> None:
    answer = await priced.http.post(DRY, files={"model": (None, "echo"), "text": (None, "x")})
    assert_problem(answer, 415, "unsupported_content_type")
    once = {"idempotency-key": "once"}
    assert (await priced.http.post(DRY, json=BODY, headers=once)).status_code == 200
    assert (await priced.http.post("/v1/jobs", json=BODY, headers=once)).status_code == 202
