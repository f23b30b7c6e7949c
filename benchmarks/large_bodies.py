"""Large and invalid bodies of one client, and the latency of another client meanwhile.

    python -m benchmarks.large_bodies [--way /v1/jobs]

Two attacks: one body of 330 kB with as many unknown fields as wrong values, and forty bodies of 90,000 unknown names at
once. An attack begins again when all its bodies are answered, for ten seconds. The other client submits a job twenty
times a second; its latencies are measured without an attack, and from the first byte of an attack to its last response.
The attacks come from a process of their own. The workers are stopped, so that only the API is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from typing import Any

from benchmarks.flood import Connection, request_of
from tests.chaos.arena import open_arena, percentile

RATE_PER_S = 20
#: Seconds of a measurement, at least.
SECONDS = 10.0
#: The latency of a request of the other client that is not accepted.
LOST_S = 3600.0
#: Bodies at a time and names in each, of the second attack.
BODIES, NAMES = 40, 90_000
#: Unknown fields, and as many wrong values, of the first attack.
MIXED = 13_000
#: Way in -> the rest of a body beside the attack's fields.
WAYS: Mapping[str, Mapping[str, Any]] = {
    "/v1/jobs": {"model": "chaos", "input": {"text": "x"}},
    "/v1/batches": {"requests": [{"model": "chaos", "input": {"text": "x"}}]},
    "/openai/v1/chat/completions": {"model": "chaos", "messages": [{"role": "user", "content": "x"}]},
    "/pooling": {"model": "chaos", "data": {"data": "x", "data_format": "url"}},
    "/ogc/processes/chaos/execution": {"inputs": {"text": "x"}},
}


@dataclass(frozen=True, slots=True)
class Measured:
    """Latencies of the other client in seconds, and the attack's responses by status with its duration."""

    latencies_s: Sequence[float]
    statuses: Mapping[str, int]
    took_s: float


def mixed(way: str) -> bytes:
    """Return a body with unknown fields beside wrong values."""
    unknown = {f"unknown{n}": n for n in range(MIXED)}
    wrong = {f"m{n}": n for n in range(MIXED)}
    return json.dumps({**WAYS[way], **unknown, "metadata": wrong}, separators=(",", ":")).encode()


def named(way: str) -> bytes:
    """Return a body with many unknown names, in less than a megabyte."""
    unknown = {f"{n:x}": 1 for n in range(NAMES)}
    return json.dumps({**WAYS[way], **unknown}, separators=(",", ":")).encode()


ATTACKS = {"mixed": (mixed, 1), "names": (named, BODIES)}


async def attack(port: int, name: str, way: str) -> Mapping[str, int]:
    """Send an attack's bodies at once, again and again; return the number of responses by status."""
    make, bodies = ATTACKS[name]
    body, statuses, begun = make(way), Counter[str](), time.perf_counter()
    while time.perf_counter() - begun < SECONDS:
        request = request_of(port, way, "", body)
        statuses.update(await asyncio.gather(*(_send(port, request) for _ in range(bodies))))
    return statuses


async def _send(port: int, request: bytes) -> str:
    connection = Connection(port)
    status, _, _ = await connection.ask(request)
    connection.close()
    return str(status)


async def measure(port: int, way: str, name: str | None) -> Measured:
    """Return the other client's latencies, during the named attack if there is one."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.large_bodies", "--way", way, "--attack", name or "", "--port", str(port),
        stdout=PIPE,
    )  # fmt: skip
    begun = time.perf_counter()
    attacking = asyncio.create_task(process.communicate())
    latencies: list[float] = []
    pending: set[asyncio.Task[None]] = set()
    while not attacking.done() or time.perf_counter() - begun < SECONDS:
        pending.add(asyncio.create_task(_ask(port, latencies)))
        await asyncio.sleep(1 / RATE_PER_S)
    await asyncio.gather(*pending)
    statuses = json.loads(attacking.result()[0])
    return Measured(latencies, statuses, statuses.pop("took_s"))


async def _ask(port: int, latencies: list[float]) -> None:
    begun = time.perf_counter()
    connection = Connection(port)
    status, _, _ = await connection.ask(request_of(port, "/v1/jobs", "", json.dumps(WAYS["/v1/jobs"]).encode()))
    connection.close()
    latencies.append(time.perf_counter() - begun if status == 202 else LOST_S)


def run(way: str) -> None:
    """Print the table's lines for one way in."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-bodies-", ignore_cleanup_errors=True) as folder,
        open_arena(Path(folder), seed=0, workers=1, durability="redis", proxied=False) as arena,
    ):
        arena.fleet.one("worker0").stop()
        port = arena.fleet.port
        asyncio.run(measure(port, way, None))  # warm
        quiet = asyncio.run(measure(port, way, None))
        for name in ATTACKS:
            found = asyncio.run(measure(port, way, name))
            ratio = percentile(found.latencies_s, 0.95) / percentile(quiet.latencies_s, 0.95)
            statuses = ", ".join(f"{count} x {status}" for status, count in found.statuses.items())
            sys.stdout.write(
                f"| {way}, {name} | {_ms(quiet)} | {_ms(found)} | {ratio:.1f} | {statuses} in {found.took_s:.1f} s |\n"
            )
            sys.stdout.flush()


def _ms(found: Measured) -> str:
    p50, p95 = (percentile(found.latencies_s, share) * 1000 for share in (0.5, 0.95))
    return f"{p50:.0f} / {p95:.0f} / {max(found.latencies_s) * 1000:.0f} ms"


def _attack(port: int, name: str, way: str) -> None:
    begun = time.perf_counter()
    statuses = asyncio.run(attack(port, name, way)) if name else {}
    json.dump({**statuses, "took_s": time.perf_counter() - begun}, sys.stdout)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--way", choices=WAYS, help="only this way in")
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.attack is not None:
        _attack(given.port, given.attack, given.way)
    else:
        for each in [given.way] if given.way else WAYS:
            run(each)
