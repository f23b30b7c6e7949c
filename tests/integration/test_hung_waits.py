"""The calls of one request share one time limit: a client waits for one time-out, however many answers come late."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from penstock.api.routes.jobs import submit_checked
from penstock.api.services import Services
from penstock.errors import Overloaded, RedisUnavailable
from penstock.storage.deadline import LEAST_TIMEOUT_S, STORABLE_S, request_deadline, time_to_store
from penstock.storage.redis import records
from penstock.storage.redis.address import MAX_CONNECTIONS
from penstock.storage.redis.records import AsyncJobStore
from penstock.storage.redis.scripts import TIMEOUT_S, query
from tests.chaos.proxy import Mode, Proxy
from tests.support.bare_store import submission
from tests.support.service import assert_problem, serving
from tests.support.valkey import ValkeyProcess, start_valkey

T = TypeVar("T")
#: A call that takes this long is answered. Two of them are more than a request may take.
LATE_S = 2.4


@pytest.fixture
async def own(tmp_path: Path) -> AsyncIterator[ValkeyProcess]:
    valkey = start_valkey(tmp_path / "valkey")
    yield valkey
    valkey.kill()


async def answered(call: Callable[[], Awaitable[T]]) -> T:
    """Return the answer to a call that is tried until the store answers."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await call()
            except RedisUnavailable:
                await asyncio.sleep(0.05)


async def pings(jobs: AsyncJobStore, count: int) -> None:
    """Call the store `count` times, each in a `request_deadline` block, which shares the limit of an outer one."""
    for _ in range(count):
        with request_deadline():
            await jobs.run(records.ping())


@pytest.mark.breadth
async def test_calls_of_one_request_share_its_time(own: ValkeyProcess) -> None:
    with Proxy(own.port) as proxy:
        jobs = AsyncJobStore.open(f"redis://127.0.0.1:{proxy.port}/0")
        try:
            await jobs.run(records.ping())
            proxy.set(Mode.SLOW, delay_s=LATE_S)
            with request_deadline():
                with pytest.raises(RedisUnavailable):
                    await pings(jobs, 2)
                proxy.set(Mode.PASS)
                proxy.cut()
                await answered(lambda: jobs.run(records.ping()))  # the limit is over; a call still gets 0.5 s
        finally:
            await jobs.close()


@pytest.mark.alone
@pytest.mark.breadth
@pytest.mark.parametrize("waited_s", [TIMEOUT_S - 1, 60.0])
async def test_the_time_in_line_counts_in_the_time_limit(own: ValkeyProcess, waited_s: float) -> None:
    jobs = AsyncJobStore.open(own.url)
    try:
        await jobs.run(records.ping())
        with own.hanging():
            begun_s = time.monotonic()
            with request_deadline(waited_s), pytest.raises(RedisUnavailable):
                await jobs.run(records.ping())
            assert time.monotonic() - begun_s >= LEAST_TIMEOUT_S
            others = await asyncio.gather(*(jobs.run(records.ping()) for _ in range(20)), return_exceptions=True)
            assert {type(other) for other in others} == {RedisUnavailable}
            assert time.monotonic() - begun_s < TIMEOUT_S  # nobody waited for a time-out of its own
        await answered(lambda: jobs.run(records.ping()))
    finally:
        await jobs.close()


async def test_cancelled_calls_leave_no_answer_for_later_ones(own: ValkeyProcess) -> None:
    jobs = AsyncJobStore.open(own.url)

    async def echo(name: str) -> str:
        found = await jobs.run(query("result", str, tenant=name, digest=name))
        return str(found)

    try:
        for name in ("a", "b"):
            await jobs.client.set(f"penstock:tenant:{name}:result:{name}", name)
        assert await echo("a") == "a"
        for pause_s in [0, 0, 0.0005, 0.001] * 10:
            waiting = [asyncio.create_task(echo("a")) for _ in range(5)]
            await asyncio.sleep(pause_s)
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            assert await asyncio.gather(*(echo("b") for _ in range(5))) == ["b"] * 5
    finally:
        await jobs.close()


async def test_more_calls_than_connections_are_all_answered(own: ValkeyProcess) -> None:
    jobs = AsyncJobStore.open(own.url)
    try:
        await asyncio.gather(*(jobs.run(records.ping()) for _ in range(3 * MAX_CONNECTIONS)))
        assert len(await jobs.client.client_list()) <= MAX_CONNECTIONS
    finally:
        await jobs.close()


@pytest.mark.breadth
async def test_a_submission_is_refused_in_time_when_each_of_its_calls_is_answered_late(
    own: ValkeyProcess, tmp_path: Path
) -> None:
    """It may be repeated under its id, and is one job."""
    path = f"/v1/jobs/{uuid.uuid4()}"
    body = {"model": "echo", "input": {"text": "x"}}
    with Proxy(own.port) as proxy:
        async with serving(f"redis://127.0.0.1:{proxy.port}/0", tmp_path / "data") as service:
            await service.submit()  # the API knows the model
            proxy.set(Mode.SLOW, delay_s=LATE_S)
            assert_problem(await service.http.put(path, json=body, timeout=60), 503, "redis_unavailable")
            proxy.set(Mode.PASS)
            proxy.cut()
            async with asyncio.timeout(60):
                while (await service.http.put(path, json=body)).status_code != 202:
                    await asyncio.sleep(0.05)
            listed = (await service.http.get("/v1/jobs")).json()["jobs"]
            assert len(listed) == 2
            assert sum(path.endswith(job["id"]) for job in listed) == 1


async def test_a_submission_whose_turn_comes_late_is_refused_before_anything_is_stored(
    own: ValkeyProcess, tmp_path: Path
) -> None:
    async with serving(own.url, tmp_path / "data") as service:
        api: Services = service.app.state.services
        with request_deadline(STORABLE_S):
            assert time_to_store()
        with request_deadline(STORABLE_S + 0.1), pytest.raises(Overloaded) as caught:
            await submit_checked(api, submission(str(uuid.uuid4()), model="echo"))
        assert caught.value.retry_after_s == 1
        assert (await service.http.get("/v1/jobs")).json()["jobs"] == []
