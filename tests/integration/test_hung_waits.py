"""A submission that waited in line before Redis hung waits that much less for its refusal."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from penstock.errors import RedisUnavailable
from penstock.storage.redis import records
from penstock.storage.redis.records import AsyncJobStore
from penstock.storage.redis.scripts import LEAST_TIMEOUT_S, TIMEOUT_S, after_waiting
from tests.support.valkey import start_valkey


@pytest.mark.parametrize("waited_s", [TIMEOUT_S - 1, 60.0])
async def test_the_time_in_line_counts_in_the_time_limit(tmp_path: Path, waited_s: float) -> None:
    own = start_valkey(tmp_path / "valkey")
    jobs = AsyncJobStore.open(own.url)
    try:
        await jobs.run(records.ping())
        with own.hanging():
            begun_s = time.monotonic()
            with after_waiting(waited_s), pytest.raises(RedisUnavailable):
                await jobs.run(records.ping())
            assert time.monotonic() - begun_s >= LEAST_TIMEOUT_S
            others = await asyncio.gather(*(jobs.run(records.ping()) for _ in range(20)), return_exceptions=True)
            assert {type(other) for other in others} == {RedisUnavailable}
            assert time.monotonic() - begun_s < TIMEOUT_S  # nobody waited for a time-out of its own
        async with asyncio.timeout(20):
            while True:
                try:
                    await jobs.run(records.ping())
                    break
                except RedisUnavailable:
                    await asyncio.sleep(0.05)
    finally:
        await jobs.close()
        own.kill()


async def test_one_time_out_ends_the_calls_that_wait_behind_it(tmp_path: Path) -> None:
    own = start_valkey(tmp_path / "valkey")
    jobs = AsyncJobStore.open(own.url)

    async def call() -> float:
        begun_s = time.monotonic()
        with pytest.raises(RedisUnavailable):
            await jobs.run(records.ping())
        return time.monotonic() - begun_s

    try:
        await jobs.run(records.ping())
        with own.hanging():
            with after_waiting(TIMEOUT_S - 1):
                first = asyncio.create_task(call())
            await asyncio.sleep(0)  # it has begun
            others = [asyncio.create_task(call()) for _ in range(5)]
            assert max(await asyncio.gather(first, *others)) < TIMEOUT_S
    finally:
        await jobs.close()
        own.kill()
