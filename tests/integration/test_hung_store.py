"""A Valkey that hangs: nobody waits for each other's time-out, and one probe a second finds that it answers again."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import httpx2
import pytest

from penstock.storage.redis import records
from tests.support.service import assert_problem, serving
from tests.support.valkey import start_valkey

JOB = {"model": "echo", "input": {"text": "x"}}
CLIENTS = 60


@pytest.mark.alone
async def test_nobody_waits_more_than_five_seconds_for_a_hung_store(tmp_path: Path) -> None:
    own = start_valkey(tmp_path / "valkey")
    try:
        async with serving(own.url, tmp_path / "data") as service:

            async def timed() -> tuple[httpx2.Response, float]:
                begun_s = time.monotonic()
                response = await service.http.post("/v1/jobs", json=JOB, timeout=60)
                return response, time.monotonic() - begun_s

            await service.submit()
            os.kill(own.pid, signal.SIGSTOP)
            waited = await asyncio.gather(*(timed() for _ in range(CLIENTS)))
            for response, waited_s in waited:
                assert_problem(response, 503, "redis_unavailable")
                assert waited_s < 5
            late, late_s = await timed()
            assert_problem(late, 503, "redis_unavailable")
            assert late_s < 5
            os.kill(own.pid, signal.SIGCONT)
            begun_s = time.monotonic()
            while (await timed())[0].status_code != 202:
                await asyncio.sleep(0.05)
                assert time.monotonic() - begun_s < 5
            await service.jobs.run(records.ping())
    finally:
        os.kill(own.pid, signal.SIGCONT)
        own.kill()
