"""Load generator: post jobs at fixed times and count the responses, with minimal use of the processor.

`python -m tests.chaos.fixed_load < load.json` reads a `Load` and writes `Sent`. Each tenant has its own process. It
writes HTTP requests directly, for a tenth of the cost of an HTTP library.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from subprocess import PIPE
from typing import Any

#: Seconds between attempts of a request whose connection ended; the same key prevents duplicate jobs.
AGAIN_S = 0.05


@dataclass(frozen=True, slots=True)
class Load:
    """Load of one tenant: a number of posts, evenly distributed over some seconds."""

    port: int
    key: str
    posts: int
    seconds: float
    connections: int
    takes_s: float


@dataclass
class Sent:
    """Results of a load."""

    accepted: list[str] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    #: Rejections without `Retry-After`.
    impatient: int = 0
    #: Seconds from the planned time of each post to its response.
    latencies_s: list[float] = field(default_factory=list)
    #: Seconds from the first post to the last response.
    took_s: float = 0.0

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Sent:
        """Return the results from the process' JSON output."""
        return cls(**data | {"statuses": Counter({int(status): n for status, n in data["statuses"].items()})})


async def in_a_process(load: Load) -> Sent:
    """Send a load from a separate process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.chaos.fixed_load", stdin=PIPE, stdout=PIPE
    )  # fmt: skip
    said, _ = await process.communicate(json.dumps(asdict(load)).encode())
    if process.returncode:
        raise RuntimeError(f"the load's process ended with {process.returncode}")
    return Sent.from_json(json.loads(said))


async def send(load: Load) -> Sent:
    """Send a load; posts wait for a free connection."""
    sent, begun = Sent(), time.perf_counter()
    numbers = iter(range(load.posts))
    await asyncio.gather(*(_keep_posting(load, numbers, begun, sent) for _ in range(load.connections)))
    sent.took_s = time.perf_counter() - begun
    return sent


async def _keep_posting(load: Load, numbers: Iterator[int], begun: float, sent: Sent) -> None:
    connection = Connection(load.port)
    for number in numbers:
        due = begun + number * load.seconds / load.posts
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        status, headers, body = await connection.ask(_request(load))
        sent.latencies_s.append(time.perf_counter() - due)
        sent.statuses[status] += 1
        if status == 202:
            sent.accepted.append(json.loads(body)["id"])
        elif b"\r\nretry-after:" not in headers:
            sent.impatient += 1
    connection.close()


def _request(load: Load) -> bytes:
    body = json.dumps({"model": "chaos", "input": {"text": "x", "takes_s": load.takes_s}}).encode()
    return request_of(load.port, "/v1/jobs", load.key, body)


def request_of(port: int, path: str, key: str, body: bytes) -> bytes:
    """Return a POST of a JSON body with an idempotency key of its own."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {key}\r\n"
        f"Idempotency-Key: {uuid.uuid4().hex}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Connection:
    """One connection that reconnects when it ends."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> tuple[int, bytes, bytes]:
        """Return the status, the headers (lower-case names) and the body of the response."""
        while True:
            try:
                return await self.ask_once(request)
            except (OSError, asyncio.IncompleteReadError):
                self.close()
                await asyncio.sleep(AGAIN_S)

    def close(self) -> None:
        """Close the connection if it is open."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def ask_once(self, request: bytes) -> tuple[int, bytes, bytes]:
        """As `ask`; raise `OSError` or `asyncio.IncompleteReadError` where the connection ends before the response."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
        body = await reader.readexactly(length)
        if b"\r\nconnection: close" in head:
            self.close()
        return int(head[9:12]), head, body


if __name__ == "__main__":
    done = asyncio.run(send(Load(**json.load(sys.stdin))))
    json.dump(vars(done), sys.stdout)
