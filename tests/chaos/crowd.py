"""Many clients in a process of their own, so that they measure the API and not one another.

As threads of the test's process, hundreds of them waited for one another, for up to 6 s, and so did the proxy between
the API and Redis. `python -m tests.chaos.crowd < crowd.json` reads a `Crowd`. It writes a JSON array for each answer,
and at the end the longest time for which its event loop stood still.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from subprocess import PIPE, Popen
from typing import Any
from urllib.parse import urlsplit

from tests.chaos.clients import AGAIN, TIMEOUT_S, pause_s, submission
from tests.chaos.fixed_load import Connection
from tests.chaos.history import Answer, History, Look, Wanted

#: Seconds between two looks at the clock by the watch of the event loop.
TICK_S = 0.02


@dataclass(frozen=True, slots=True)
class Crowd:
    """The clients and the jobs that they share, as pairs of an id and a body."""

    port: int
    jobs: Sequence[tuple[str, dict[str, Any]]]
    clients: int
    #: Time on the monotonic clock, which all processes share, at which the clients give up.
    until: float


def submit_from_a_crowd(
    base_url: str, history: History, jobs: Sequence[Wanted], *, clients: int, until: float
) -> threading.Thread:
    """Start clients that share the jobs; return the thread that writes down their answers until all were accepted."""
    history.want(jobs)
    port = urlsplit(base_url).port
    assert port is not None
    crowd = Crowd(port, [(job.id, submission(job)) for job in jobs], clients, until)
    thread = threading.Thread(target=_listen, args=(crowd, history), name="crowd")
    thread.start()
    return thread


def _listen(crowd: Crowd, history: History) -> None:
    with Popen([sys.executable, "-m", "tests.chaos.crowd"], stdin=PIPE, stdout=PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(asdict(crowd)).encode())
        process.stdin.close()
        for line in process.stdout:
            _note(json.loads(line), history)


def _note(said: Any, history: History) -> None:
    if isinstance(said, float):
        history.client_lag_s = max(history.client_lag_s, said)
        return
    *values, ended_s, job = said
    answer = Answer(*values)
    history.answers.append(answer)
    if job is not None:
        history.saw(job["id"], Look.at(job), began_s=ended_s - answer.took_s, ended_s=ended_s)
        history.accepted.add(answer.id)


async def _submit_all(crowd: Crowd) -> None:
    watch = asyncio.create_task(longest_lag_s())
    shares = [crowd.jobs[number :: crowd.clients] for number in range(crowd.clients)]
    await asyncio.gather(*(_work(crowd, share) for share in shares))
    watch.cancel()
    _say(await watch)


async def longest_lag_s() -> float:
    """Return the longest time that the event loop stood still, when cancelled."""
    longest_s, is_cancelled = 0.0, False
    while not is_cancelled:
        begun_s = time.monotonic()
        try:
            await asyncio.sleep(TICK_S)
        except asyncio.CancelledError:
            is_cancelled = True
        longest_s = max(longest_s, time.monotonic() - begun_s - TICK_S)
    return longest_s


async def _work(crowd: Crowd, share: Sequence[tuple[str, dict[str, Any]]]) -> None:
    connection = Connection(crowd.port)
    for job_id, body in share:
        request = _request(crowd.port, job_id, body)
        while time.monotonic() < crowd.until:
            status = await _ask(connection, job_id, request)
            if 200 <= status < 300:
                break
            if status not in AGAIN:
                raise AssertionError(f"submit {job_id} was refused for good: {status}")
            await asyncio.sleep(pause_s(status))
    connection.close()


async def _ask(connection: Connection, job_id: str, request: bytes) -> int:
    """Send a request, say its answer, and return the status; 0 where there was none."""
    began_s, at_s = time.monotonic(), time.time()
    status, after, found = 0, None, None
    try:
        async with asyncio.timeout(TIMEOUT_S):
            status, head, content = await connection.ask_once(request)
        after = head.partition(b"\r\nretry-after: ")[2].partition(b"\r\n")[0].decode() or None
        found = json.loads(content)
    except (OSError, asyncio.IncompleteReadError):  # a time-out is an `OSError`
        connection.close()
    ended_s = time.monotonic()
    answer = Answer(at_s, "submit", job_id, status, ended_s - began_s, after, (found or {}).get("code"))
    _say([*astuple(answer), ended_s, found if 200 <= status < 300 else None])
    return status


def _say(said: Any) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def _request(port: int, job_id: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = (
        f"PUT /v1/jobs/{job_id} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


if __name__ == "__main__":
    asyncio.run(_submit_all(Crowd(**json.load(sys.stdin))))
