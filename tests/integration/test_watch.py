"""`penstock watch`, looked at in a terminal of its own, and what the API tells of workers."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from select import select

import pyte
import pytest

from penstock.api_keys import Scope, new_key
from penstock.jobs import Phase, Progress
from penstock.storage.journal.api_keys import put_key
from penstock.storage.redis import records, workers
from penstock.storage.redis.workers import ServedModel, WorkerState
from tests.support.api_server import Server, listening
from tests.support.command_line import Shell
from tests.support.service import Service, serving
from tests.support.valkey import ValkeyProcess

pytestmark = pytest.mark.breadth

STATE = WorkerState(
    host="gpu-1", started_s=time.time() - 7300, queues=("default",), slots=2, device="NVIDIA H100", draining=False,
    models=(ServedModel("echo", ready=True, loaded=True, batch_size=16),),
)  # fmt: skip
#: Seconds to wait for a screen at most.
PATIENCE_S = 60


class Terminal:
    """A command in a terminal of a size, whose screen is read as a person does."""

    def __init__(self, url: str, columns: int, lines: int, *words: str) -> None:
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self._terminal, inner = pty.openpty()
        self._size(columns, lines)
        # What says a size of its own of another terminal counts for more than this one's.
        env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli", *words], stdin=inner, stdout=inner, stderr=inner,
            start_new_session=True, env={**env, "PENSTOCK_URL": url, "TERM": "xterm-256color"},
        )  # fmt: skip
        os.close(inner)

    async def shows(self, wanted: Callable[[list[str]], bool]) -> list[str]:
        """Return the lines of the screen when they are as wanted."""
        return await asyncio.to_thread(self._read_until, wanted)

    def resize(self, columns: int, lines: int) -> None:
        self._screen.resize(lines, columns)
        self._screen.reset()
        self._size(columns, lines)
        self._process.send_signal(signal.SIGWINCH)

    async def interrupt(self) -> int:
        """Press Ctrl-C and return the exit code."""
        self._process.send_signal(signal.SIGINT)
        return await asyncio.to_thread(self._process.wait, PATIENCE_S)

    def close(self) -> None:
        """End the command if it goes on."""
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)

    def _read_until(self, wanted: Callable[[list[str]], bool]) -> list[str]:
        until = time.monotonic() + PATIENCE_S
        while not wanted(lines := [line.rstrip() for line in self._screen.display]):
            ready, _, _ = select([self._terminal], [], [], until - time.monotonic())
            assert ready, "\n".join(lines)
            self._stream.feed(os.read(self._terminal, 65536))
        return lines

    def _size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


@pytest.fixture
def opened() -> Iterator[Callable[..., Terminal]]:
    """Return what opens terminals, which are closed with the test."""
    with ExitStack() as stack:
        yield lambda *what: stack.enter_context(closing(Terminal(*what)))


@pytest.fixture
async def server(service: Service) -> AsyncIterator[Server]:
    async with listening(service) as running:
        yield running


async def busy(service: Service, jobs: int = 1) -> list[str]:
    """Let a worker `w` live and run jobs, of which it has done 3 of 8 prompts each; one more waits."""
    await service.jobs.run(workers.report("w", STATE, alive_s=600))
    made = [(await service.submit())["id"] for _ in range(jobs)]
    for _ in range(jobs):
        claim = await service.claim()
        await service.jobs.run(records.heartbeat(claim, Phase.INFERRING, Progress(3, 8, "tiles")))
    await service.submit()
    return made


def has(*words: str) -> Callable[[list[str]], bool]:
    return lambda lines: all(any(word in line for line in lines) for word in words)


async def test_a_worker_says_what_it_is_and_the_store_how_much_it_runs(service: Service) -> None:
    await busy(service, 2)
    [worker] = (await service.http.get("/v1/workers")).json()["workers"]
    assert datetime.fromisoformat(worker.pop("started_at")) == datetime.fromtimestamp(STATE.started_s, UTC)
    assert worker == {
        "id": "w", "host": "gpu-1", "pid": None, "state": "serving", "queues": ["default"], "slots": 2, "running": 2,
        "device": "NVIDIA H100", "models": [
            {"name": "echo", "ready": True, "loaded": True, "batch_size": 16, "encoder_cache_bytes": None}
        ],
    }  # fmt: skip
    await service.jobs.run(workers.report("w", STATE, alive_s=0))
    assert (await service.http.get("/v1/workers")).json() == {"workers": []}


async def test_the_screen_shows_queues_workers_and_jobs_and_goes_on_with_them(
    service: Service, server: Server, opened: Callable[..., Terminal]
) -> None:
    [job_id] = await busy(service)
    terminal = opened(server.url, 150, 30, "watch", "--every", "0.2")
    lines = await terminal.shows(has(job_id, "gpu-1"))
    [queue] = [line.split() for line in lines if line.startswith("default")]
    assert queue[:4] == ["default", "open", "1", "1"]
    [worker] = [line for line in lines if "gpu-1" in line]
    for told in ("serving", "1/2", "NVIDIA H100", "echo (16)"):
        assert told in worker
    assert re.search(r" 2:\d\d:\d\d$", worker)
    [job] = [line for line in lines if job_id in line]
    for told in ("echo", "inferring", "3/8 tiles", "━"):
        assert told in job

    second = await service.claim()
    await terminal.shows(has(second.key.id))
    await service.succeed(second)
    await terminal.shows(lambda lines: not has(second.key.id)(lines))
    assert await terminal.interrupt() == 0


async def test_a_screen_of_another_size_is_filled_and_none_is_too_small(
    service: Service, server: Server, opened: Callable[..., Terminal]
) -> None:
    await busy(service, 9)
    terminal = opened(server.url, 150, 40, "watch")
    # What it paints comes in pieces.
    await terminal.shows(lambda lines: sum("inferring" in line for line in lines) == 9)
    terminal.resize(80, 14)
    lines = await terminal.shows(has("more", "NVIDIA"))
    assert not any("per minute" in line for line in lines)
    shown = sum("inferring" in line for line in lines)
    assert has(f"and {9 - shown} more")(lines)
    terminal.resize(20, 3)
    await terminal.shows(has("penstock"))
    terminal.resize(150, 40)
    await terminal.shows(has("gpu-1", "per minute"))
    assert await terminal.interrupt() == 0


async def test_at_a_hundred_columns_the_bar_goes_before_anything_is_cut_short(
    service: Service, server: Server, opened: Callable[..., Terminal]
) -> None:
    [job_id] = await busy(service)
    waits = await service.claim()
    await service.jobs.run(records.heartbeat(waits, Phase.POSTPROCESSING, Progress(1180, 1200, "prompts")))
    terminal = opened(server.url, 100, 30, "watch", "--every", "0.2")
    lines = await terminal.shows(has(job_id, waits.key.id))
    [job] = [line for line in lines if waits.key.id in line]
    for told in ("echo", "writing the result", "1180/1200 prompts"):
        assert told in job
    assert "…" not in "".join(lines)
    terminal.resize(150, 30)
    await terminal.shows(lambda lines: has("━")(lines) and has("attempt")(lines))


async def test_a_queue_in_which_nobody_waits_is_not_said_to_be_empty_soon(service: Service, server: Server) -> None:
    await service.submit()
    await service.claim()
    shell = Shell({"PENSTOCK_URL": server.url}, Path())
    above = (await shell("watch", "--once")).out.partition("running job")[0]
    [watched] = [line for line in above.splitlines() if "default" in line]
    assert "0:00" not in watched
    [queue] = [line for line in (await shell("queues", "list")).out.splitlines() if line.startswith("default")]
    assert queue.split() == ["default", "open", "0", "1", "0", "1", "0", "s", "0"]  # its oldest is said, its end is not


async def test_a_service_that_went_away_is_said_until_it_is_back(
    service: Service, opened: Callable[..., Terminal]
) -> None:
    await busy(service)
    async with listening(service) as server:
        url, port = server.url, server.servers[0].sockets[0].getsockname()[1]
        terminal = opened(url, 120, 30, "watch", "--every", "0.2")
        await terminal.shows(has("gpu-1"))
    await terminal.shows(has("no answer from", "gpu-1"))
    async with listening(service, port):
        await terminal.shows(lambda lines: not has("no answer from")(lines) and has("gpu-1")(lines))
        assert await terminal.interrupt() == 0


async def test_programs_are_told_once(service: Service, server: Server, tmp_path: Path) -> None:
    [job_id] = await busy(service)
    shell = Shell({"PENSTOCK_URL": server.url}, tmp_path)
    told = (await shell("watch", "--json")).document()
    assert [queue["name"] for queue in told["queues"]] == ["default"]
    assert [worker["device"] for worker in told["workers"]] == ["NVIDIA H100"]
    assert [(job["id"], job["progress"]["done"]) for job in told["jobs"]] == [(job_id, 3)]
    for words in (("watch",), ("watch", "--once")):
        done = await shell(*words)
        assert (done.code, done.err) == (0, "")
        assert has(job_id, "gpu-1", "3/8 tiles")(done.out.splitlines())
        assert "\x1b" not in done.out
    gone = await Shell({"PENSTOCK_URL": "http://127.0.0.1:9"}, tmp_path)("watch")
    assert (gone.code, "no answer from" in gone.err) == (3, True)


async def test_a_key_without_the_scope_sees_its_jobs_alone(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, access="keys") as service, listening(service) as server:
        record, key = new_key(
            "of the tests", tenant="acme", name="", scopes=(Scope.READ,), created_s=time.time(), expires_s=None
        )
        put_key(service.objects, record)
        shell = Shell({"PENSTOCK_URL": server.url, "PENSTOCK_API_KEY": key}, tmp_path)
        told = (await shell("watch", "--json")).document()
        assert (told["queues"], told["workers"], told["jobs"]) == (None, None, [])
        done = await shell("watch")
        assert done.code == 0
        assert "queues: the route needs the scope monitor" in done.out
