"""How fast the API takes jobs over HTTP: at a fixed rate, and as fast as it can."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles

import httpx

from tests.chaos.arena import open_arena

RATE_PER_S = 200
SECONDS = 10
CONNECTIONS = 16
BODY = {"model": "chaos", "input": {"text": "bench"}}


def http_rates(durability: str) -> Iterator[str]:
    """Yield the table's lines; the worker is stopped meanwhile, so that the API alone is measured."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-http-", ignore_cleanup_errors=True) as folder,
        open_arena(Path(folder), seed=0, workers=1, durability=durability, proxied=False) as arena,
    ):
        arena.fleet.one("worker0").stop()
        at_rate = quantiles(asyncio.run(_at_rate(arena.fleet.url)), n=100)
        figures = f"{at_rate[49] * 1000:.1f} / {at_rate[98] * 1000:.1f} ms"
        yield f"| HTTP submit at {RATE_PER_S}/s, p50 / p99, durability {durability} | {figures} | |"
        fastest = asyncio.run(_max(arena.fleet.url))
        yield f"| HTTP submit, most that one API process takes, durability {durability} | {fastest:.0f}/s | |"


async def _submit(client: httpx.AsyncClient) -> float:
    begun = time.perf_counter()
    answer = await client.post("/v1/jobs", json=BODY)
    assert answer.status_code == 202, answer.text  # noqa: S101
    return time.perf_counter() - begun


async def _at_rate(base_url: str) -> list[float]:
    """Send at fixed times, whether or not the answers came; return how long each took."""
    limits = httpx.Limits(max_connections=64)
    async with httpx.AsyncClient(base_url=base_url, timeout=30, limits=limits) as client:
        await _submit(client)
        begun, sent = time.perf_counter(), []
        for number in range(RATE_PER_S * SECONDS):
            await asyncio.sleep(max(0.0, begun + number / RATE_PER_S - time.perf_counter()))
            sent.append(asyncio.create_task(_submit(client)))
        return list(await asyncio.gather(*sent))


async def _max(base_url: str) -> float:
    """Keep some connections busy; return how many were accepted per second."""
    ends = time.perf_counter() + SECONDS

    async def press(client: httpx.AsyncClient) -> int:
        done = 0
        while time.perf_counter() < ends:
            await _submit(client)
            done += 1
        return done

    async with httpx.AsyncClient(base_url=base_url, timeout=30) as client:
        return sum(await asyncio.gather(*(press(client) for _ in range(CONNECTIONS)))) / SECONDS
