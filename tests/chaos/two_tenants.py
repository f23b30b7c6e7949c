"""Fairness between two tenants, one with a hundred times the load: their waiting times.

    python -m tests.chaos.two_tenants [--posts 10000] [--seconds 10] [--rate 20]

The small load runs first alone and then beside the flood. Both are sent at fixed times, independent of responses, each
by its own process (`fixed_load.py`) with its own API key. The service has real processes: API, two workers, keeper,
Valkey. A waiting time is from the job's creation to its start, by Redis' clock.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from tests.chaos.arena import Arena, open_arena, percentile
from tests.chaos.fixed_load import Load, Sent, in_a_process

#: Posts of the flood per post of the small tenant.
RATIO = 100
#: Seconds of work per job: 80 jobs per second with four slots.
TAKES_S = 0.05
#: Maximum live jobs of one tenant; more are answered 429.
MAX_TENANT_JOBS = 2000
#: Connections of each tenant's client.
SMALL_CONNECTIONS, FLOOD_CONNECTIONS = 32, 256
SMALL, FLOOD = "small", "flood"


@dataclass(frozen=True)
class Measured:
    """Results of the whole run."""

    alone: Sent
    beside: Sent
    flood: Sent
    alone_waits_s: Sequence[float]
    beside_waits_s: Sequence[float]

    @property
    def ratio(self) -> float:
        """Ratio of the small tenant's p95 wait beside the flood to its wait alone."""
        return percentile(self.beside_waits_s, 0.95) / max(1e-9, percentile(self.alone_waits_s, 0.95))


async def measure(arena: Arena, *, posts: int, seconds: float, takes_s: float) -> Measured:
    """Send both loads and return the results; waiting jobs of the flood are canceled at the end."""
    few = max(1, posts // (RATIO + 1))
    port = arena.fleet.port
    small_load = Load(port, arena.keys[SMALL], few, seconds, SMALL_CONNECTIONS, takes_s)
    flood_load = Load(port, arena.keys[FLOOD], posts - few, seconds, FLOOD_CONNECTIONS, takes_s)
    async with _client(arena, SMALL) as small, _client(arena, FLOOD) as flooding:
        alone = await in_a_process(small_load)
        alone_waits = await _waits(small, alone)
        beside, flood = await asyncio.gather(in_a_process(small_load), in_a_process(flood_load))
        beside_waits = await _waits(small, beside)
        await _purge(flooding)
    return Measured(alone, beside, flood, alone_waits, beside_waits)


def report(found: Measured) -> str:
    """Return the figures as lines."""
    lines = [f"{name}: {_sent(sent)}" for name, sent in _tenants(found)]
    for name, waits in (("alone", found.alone_waits_s), ("beside the flood", found.beside_waits_s)):
        p50, p95 = percentile(waits, 0.5), percentile(waits, 0.95)
        figures = f"p50 {p50 * 1000:.0f} ms, p95 {p95 * 1000:.0f} ms"
        lines.append(f"small tenant's jobs {name}, wait: {figures} ({len(waits)} jobs)")
    lines.append(f"p95 beside / alone: {found.ratio:.2f}")
    sent = sum(found.flood.statuses.values())
    lines.append(f"{sent} posts of the flood answered in {found.flood.took_s:.1f} s: {sent / found.flood.took_s:.0f}/s")
    return "\n".join(lines)


def _tenants(found: Measured) -> Sequence[tuple[str, Sent]]:
    return ("small alone", found.alone), ("small beside", found.beside), ("flood", found.flood)


def _sent(sent: Sent) -> str:
    statuses = ", ".join(f"{count} x {status}" for status, count in sorted(sent.statuses.items()))
    p50, p95 = (percentile(sent.latencies_s, share) * 1000 for share in (0.5, 0.95))
    refused = sum(sent.statuses.values()) - len(sent.accepted)
    timely = f"with Retry-After: {refused - sent.impatient} of {refused} refusals"
    return f"{statuses}; answered in p50 {p50:.0f} ms, p95 {p95:.0f} ms; {timely}"


def _client(arena: Arena, tenant: str) -> httpx2.AsyncClient:
    # Both server and httpx2 close idle connections after 5 s, so set a shorter time here.
    headers = {"Authorization": f"Bearer {arena.keys[tenant]}"}
    limits = httpx2.Limits(keepalive_expiry=1)
    return httpx2.AsyncClient(base_url=arena.fleet.url, headers=headers, timeout=httpx2.Timeout(120), limits=limits)


async def _ask(client: httpx2.AsyncClient, method: str, path: str, **options: Any) -> httpx2.Response:
    """Repeat an idempotent request until it succeeds, because connections may end on a busy machine."""
    while True:
        with suppress(httpx2.TransportError):
            return await client.request(method, path, **options)


async def _waits(client: httpx2.AsyncClient, sent: Sent) -> list[float]:
    """Return the waiting time of each accepted job after all jobs have ended."""
    return [await _wait(client, job_id) for job_id in sent.accepted]


async def _wait(client: httpx2.AsyncClient, job_id: str) -> float:
    job: Mapping[str, Any] = {}
    while job.get("completed_at") is None:
        answer = await _ask(client, "GET", f"/v1/jobs/{job_id}", params={"wait": 30})
        job = answer.json() if answer.status_code == 200 else {}
    return float(job["metrics"]["queue_ms"]) / 1000


async def _purge(client: httpx2.AsyncClient) -> None:
    more = True
    while more:
        answer = await _ask(client, "POST", "/v1/queues/default/purge")
        more = answer.status_code != 200 or (answer.json()["more"] and answer.json()["canceled"] > 0)


def run(
    *, posts: int, seconds: float, takes_s: float = TAKES_S, max_tenant_jobs: int = MAX_TENANT_JOBS,
    rate: float | None = None,
) -> Measured:  # fmt: skip
    """Start a service, send both loads, and return the results. `rate` is `max_tenant_submissions_per_s`."""
    with (
        tempfile.TemporaryDirectory(prefix="chaos-tenants-", ignore_cleanup_errors=True) as folder,
        open_arena(
            Path(folder), seed=0, workers=2, proxied=False, tenants=(SMALL, FLOOD),
            max_tenant_jobs=max_tenant_jobs, max_tenant_submissions_per_s=rate,
        ) as arena,
    ):  # fmt: skip
        return asyncio.run(measure(arena, posts=posts, seconds=seconds, takes_s=takes_s))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--posts", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rate", type=float, help="max_tenant_submissions_per_s; default: no limit")
    wanted = parser.parse_args()
    sys.stdout.write(report(run(posts=wanted.posts, seconds=wanted.seconds, rate=wanted.rate)) + "\n")
