"""Post jobs at fixed times and count the answers: a client so cheap that it leaves the machine to the service.

`python -m benchmarks.flood < wanted.json` takes a `Load` and writes what was `Sent`. A process of its own for each
tenant; it writes requests and reads answers itself, for a tenth of what an HTTP library costs.
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

#: Between two tries of a request whose connection ended: the same key, so that a job is made once.
AGAIN_S = 0.05


@dataclass(frozen=True, slots=True)
class Load:
    """What a tenant sends: so many posts, evenly over so many seconds."""

    port: int
    key: str
    posts: int
    seconds: float
    connections: int
    takes_s: float


@dataclass
class Sent:
    """What became of a load."""

    accepted: list[str] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    #: Refusals that do not say when to come back.
    impatient: int = 0
    #: From the time at which a post was to be sent.
    latencies_s: list[float] = field(default_factory=list)
    #: From the first post to the last answer.
    took_s: float = 0.0

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Sent:
        """Rebuild from what the process wrote."""
        return cls(**data | {"statuses": Counter({int(status): n for status, n in data["statuses"].items()})})


async def in_a_process(load: Load) -> Sent:
    """Send a load from a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.flood", stdin=PIPE, stdout=PIPE
    )  # fmt: skip
    said, _ = await process.communicate(json.dumps(asdict(load)).encode())
    if process.returncode:
        raise RuntimeError(f"the load's process ended with {process.returncode}")
    return Sent.from_json(json.loads(said))


async def send(load: Load) -> Sent:
    """Send a load; posts wait for a free connection where all are taken."""
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
    head = (
        f"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1:{load.port}\r\nAuthorization: Bearer {load.key}\r\n"
        f"Idempotency-Key: {uuid.uuid4().hex}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Connection:
    """One connection, made anew whenever it ends."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> tuple[int, bytes, bytes]:
        """Return the status, the head (names in small letters) and the body of the answer."""
        while True:
            try:
                return await self._ask(request)
            except (OSError, asyncio.IncompleteReadError):
                self.close()
                await asyncio.sleep(AGAIN_S)

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _ask(self, request: bytes) -> tuple[int, bytes, bytes]:
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
