"""Goodput under overload: accepted jobs per second at one, three and ten times the rate that the API takes.

    python -m benchmarks.overload [--seconds 8] [--patience 2] [--rates 882 2940]

Requests are sent at fixed times, whatever happened to earlier ones, over as many connections as that needs. A client
closes its connection when it has waited for its patience; only responses before count. The load comes from a process of
its own, and the worker is stopped, so that only the API is measured. The most that the API takes is measured first,
with 16 connections that send one request after another. The processor time of a refusal is the API's, without that of
the accepted jobs at the cost that they have without overload. Fixed rates follow, since multiples of the most grow with
it: by default three and ten times of the 294/s that the API took before it had a door.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from subprocess import PIPE
from typing import Any

import psutil

from benchmarks.flood import Load, in_a_process, request_of
from tests.chaos.arena import open_arena, percentile

BODY = json.dumps({"model": "chaos", "input": {"text": "x", "takes_s": 0}}).encode()
CONNECTIONS = 16
MULTIPLES = (1, 3, 10)
FIXED_RATES = (882, 2940)


@dataclass(frozen=True, slots=True)
class Flood:
    """Requests per second for some seconds, from clients that leave after `patience_s`."""

    port: int
    rate_per_s: float
    seconds: float
    patience_s: float


@dataclass
class Answered:
    """Responses in time by status, clients that left, and the latencies of accepted requests."""

    statuses: Counter[str] = field(default_factory=Counter)
    left: int = 0
    latencies_s: list[float] = field(default_factory=list)
    took_s: float = 0.0
    #: Processor time of the load's process.
    used_s: float = 0.0


class Client(asyncio.Protocol):
    """One connection: it sends a request, and calls back with the status of its response."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._begun_s = 0.0
        self._data = b""
        self.transport: Any = None
        self._leaving: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = transport

    def send(self, due_s: float) -> None:
        """Send a request that was due at this time."""
        self._begun_s, self._data = due_s, b""
        self.transport.write(request_of(self._sender.flood.port, "/v1/jobs", "", BODY))
        loop = asyncio.get_running_loop()
        self._leaving = loop.call_later(self._sender.flood.patience_s, self._leave)

    def data_received(self, data: bytes) -> None:
        """Count a complete response."""
        self._data += data
        head, ends, body = self._data.partition(b"\r\n\r\n")
        length = head.lower().partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
        if ends and len(body) >= int(length or 0):
            self._end(head[9:12].decode())
            if b"connection: close" not in head.lower():
                self._sender.idle.append(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Count a response that will not come."""
        if self in self._sender.idle:
            self._sender.idle.remove(self)
        self._end("lost")

    def _leave(self) -> None:
        self._leaving = None
        self._sender.answered.left += 1
        self.transport.close()

    def _end(self, status: str) -> None:
        if self._leaving is None:
            return
        self._leaving.cancel()
        self._leaving = None
        self._sender.answered.statuses[status] += 1
        if status == "202":
            self._sender.answered.latencies_s.append(time.perf_counter() - self._begun_s)


class Sender:
    """Sends a flood."""

    def __init__(self, flood: Flood) -> None:
        self.flood = flood
        self.answered = Answered()
        self.idle: deque[Client] = deque()

    async def run(self) -> Answered:
        """Send all requests; return the responses."""
        begun, sent, opening = time.perf_counter(), 0, set[asyncio.Task[None]]()
        while (now := time.perf_counter() - begun) < self.flood.seconds:
            due = int(now * self.flood.rate_per_s) - sent
            for _ in range(due):
                if self.idle:
                    self.idle.pop().send(time.perf_counter())
                else:
                    opening.add(asyncio.create_task(self._open(time.perf_counter())))
            sent += due
            await asyncio.sleep(0.002)
        self.answered.took_s = time.perf_counter() - begun
        await asyncio.gather(*opening)
        await asyncio.sleep(self.flood.patience_s + 0.1)
        self.answered.used_s = time.process_time()
        return self.answered

    async def _open(self, due_s: float) -> None:
        try:
            async with asyncio.timeout(self.flood.patience_s):
                _, client = await asyncio.get_running_loop().create_connection(
                    lambda: Client(self), "127.0.0.1", self.flood.port
                )
        except OSError:
            self.answered.statuses["not connected"] += 1
        else:
            client.send(due_s)


async def flooded(flood: Flood) -> Answered:
    """Send a flood from a separate process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.overload", "--flood", json.dumps(asdict(flood)), stdout=PIPE
    )
    said, _ = await process.communicate()
    answered = json.loads(said)
    return Answered(**answered | {"statuses": Counter(answered["statuses"])})


def run(seconds: float, patience_s: float, rates: Sequence[float]) -> None:
    """Print the table's lines."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-overload-", ignore_cleanup_errors=True) as folder,
        open_arena(Path(folder), seed=0, workers=1, durability="redis", proxied=False) as arena,
    ):
        arena.fleet.one("worker0").stop()
        posts = int(100 * seconds)
        port, api = arena.fleet.port, psutil.Process(arena.fleet.one("api").pid)
        asyncio.run(in_a_process(Load(port, "", CONNECTIONS, 1, CONNECTIONS, 0)))
        used_s = sum(api.cpu_times()[:2])
        runs = [asyncio.run(in_a_process(load)) for load in 2 * [Load(port, "", posts, 0, CONNECTIONS, 0)]]
        accepted_s = (sum(api.cpu_times()[:2]) - used_s) / sum(len(sent.accepted) for sent in runs)
        most = max(len(sent.accepted) / sent.took_s for sent in runs)
        cells = f"{most:.0f}/s | 1.00 | | {accepted_s * 1000:.1f} ms | |"
        sys.stdout.write(f"| the most, {CONNECTIONS} connections | {cells}\n")
        loads = [(f"{multiple} times the load", most * multiple) for multiple in MULTIPLES]
        for name, rate in (*loads, *((f"{rate:.0f}/s", rate) for rate in rates)):
            used_s, whole = sum(api.cpu_times()[:2]), psutil.cpu_times()
            found = asyncio.run(flooded(Flood(port, rate, seconds, patience_s)))
            used_s = sum(api.cpu_times()[:2]) - used_s
            machine = _machine(whole, psutil.cpu_times())
            sys.stdout.write(f"| {name} | {_figures(found, most, used_s, accepted_s)}; {machine} |\n")
            sys.stdout.flush()


def _machine(before: Any, after: Any) -> str:
    """Return what all processes of the machine, and its kernel, did meanwhile."""
    user, kernel, waits, idle = (
        sum(getattr(after, name, 0) - getattr(before, name, 0) for name in names)
        for names in (("user", "nice"), ("system", "irq", "softirq"), ("steal",), ("idle", "iowait"))
    )
    return f"machine: user {user:.1f} s, kernel {kernel:.1f} s, stolen {waits:.1f} s, idle {idle:.1f} s"


def _figures(found: Answered, most: float, used_s: float, accepted_s: float) -> str:
    """Return the cells of a row; `used_s` is the API's processor time, `accepted_s` that of an accepted job."""
    accepted, refused = len(found.latencies_s), found.statuses["503"]
    p50, p95 = (percentile(found.latencies_s, share) * 1000 for share in (0.5, 0.95))
    refusal_ms = max(0.0, used_s - accepted_s * accepted) / refused * 1000 if refused else 0.0
    statuses = ", ".join(f"{count} x {status}" for status, count in sorted(found.statuses.items()))
    return (
        f"{accepted / found.took_s:.0f}/s | {accepted / found.took_s / most:.2f} | {p50:.0f} / {p95:.0f} ms | "
        f"{accepted_s * 1000:.1f} / {refusal_ms:.2f} ms | "
        f"{statuses}, {found.left} left; processor time: API {used_s:.1f} s, load {found.used_s:.1f} s"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--patience", type=float, default=2, help="seconds that a client waits")
    parser.add_argument(
        "--rates", type=float, nargs="*", default=FIXED_RATES, help="requests per second, after multiples"
    )
    parser.add_argument("--flood", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.flood:
        json.dump(vars(asyncio.run(Sender(Flood(**json.loads(given.flood))).run())), sys.stdout)
    else:
        run(given.seconds, given.patience, given.rates)
