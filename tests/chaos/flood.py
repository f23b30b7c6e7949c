"""A flood: requests at fixed times from clients that leave, in a process of its own.

Requests are sent at fixed times, whatever happened to earlier ones, over as many connections as that needs. A client
closes its connection after its patience; only responses before that count.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from subprocess import PIPE
from typing import Any

from tests.chaos.fixed_load import request_of

BODY = json.dumps({"model": "chaos", "input": {"text": "x", "takes_s": 0}}).encode()


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
        await asyncio.gather(*opening)
        await asyncio.sleep(self.flood.patience_s + 0.1)
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
        sys.executable, "-m", "tests.chaos.flood", json.dumps(asdict(flood)), stdout=PIPE
    )
    said, _ = await process.communicate()
    answered = json.loads(said)
    return Answered(**answered | {"statuses": Counter(answered["statuses"])})


if __name__ == "__main__":
    json.dump(vars(asyncio.run(Sender(Flood(**json.loads(sys.argv[1]))).run())), sys.stdout)
