"""Rate and latency of HTTP submissions: at a fixed rate, and at the maximum rate.

Run it alone with `python -m benchmarks.http_submit`.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles

import psutil

from benchmarks.flood import Load, Sent, in_a_process
from tests.chaos.arena import Arena, open_arena

RATE_PER_S = 200
SECONDS = 10
#: Connections at the fixed rate and at the maximum rate.
MANY, FEW = 64, 16
#: Settings whose limits reject all submissions.
REFUSALS = 5000


def http_rates(durability: str) -> Iterator[str]:
    """Yield the table's lines. The worker is stopped, so that only the API is measured."""
    with _arena(durability) as arena:
        posts = RATE_PER_S * SECONDS
        _run(arena, posts=FEW, seconds=1, connections=FEW)
        sent, _ = _run(arena, posts=posts, seconds=SECONDS, connections=MANY)
        at_rate = quantiles(sent.latencies_s, n=100)
        figures = f"{at_rate[49] * 1000:.1f} / {at_rate[98] * 1000:.1f} ms"
        yield f"| HTTP submit at {RATE_PER_S}/s, p50 / p99, durability {durability} | {figures} | |"
        sent, cpu_ms = _run(arena, posts=posts, seconds=0, connections=FEW)
        figures = f"{posts / sent.took_s:.0f}/s, {cpu_ms:.2f} ms"
        yield f"| HTTP submit, most that one API process takes, durability {durability} | {figures} | |"


def refusals() -> Iterator[str]:
    """Yield the line of submissions over the tenant's limit."""
    with _arena("manifest", max_tenant_jobs=1) as arena:
        _run(arena, posts=1, seconds=0, connections=1)
        sent, cpu_ms = _run(arena, posts=REFUSALS, seconds=0, connections=MANY)
        assert set(sent.statuses) <= {429, 503}, sent.statuses  # noqa: S101
        figures = f"{REFUSALS / sent.took_s:.0f}/s, {cpu_ms:.2f} ms"
        yield f"| HTTP submits over the tenant's limit, most that one API process refuses | {figures} | |"


@contextmanager
def _arena(durability: str, **settings: object) -> Iterator[Arena]:
    with (
        tempfile.TemporaryDirectory(prefix="bench-http-", ignore_cleanup_errors=True) as folder,
        open_arena(Path(folder), seed=0, workers=1, durability=durability, proxied=False, **settings) as arena,
    ):
        arena.fleet.one("worker0").stop()
        yield arena


def _run(arena: Arena, *, posts: int, seconds: float, connections: int) -> tuple[Sent, float]:
    """Return the results of the posts, and the API's processor time per post in ms."""
    api = psutil.Process(arena.fleet.one("api").pid)
    before = api.cpu_times()
    load = Load(arena.fleet.port, "", posts=posts, seconds=seconds, connections=connections, takes_s=0)
    sent = asyncio.run(in_a_process(load))
    after = api.cpu_times()
    return sent, (after.user + after.system - before.user - before.system) * 1000 / posts


if __name__ == "__main__":
    for line in (*http_rates("redis"), *http_rates("manifest"), *refusals()):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
