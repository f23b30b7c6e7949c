"""`penstock up --standby 1`: the next worker is the process that waited, and nothing of it outlives `up`."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from penstock.client import Client
from tests.support.polling import wait_for
from tests.support.stack import Stack, running

pytestmark = [pytest.mark.slow, pytest.mark.breadth]


def test_a_standby_becomes_the_next_worker_and_ends_with_up(tmp_path: Path) -> None:
    config, options = "idle_exit_s = 1\n", ("--workers", "0..1", "--standby", "1")
    with running(tmp_path / "up", config=config, options=options) as stack, stack.client() as client:
        wait_for(lambda: ready_standby(stack), "no standby is ready")
        assert client.queue().workers == 0

        killed = ready_standby(stack)
        os.kill(killed, signal.SIGKILL)
        wait_for(lambda: ready_standby(stack) not in (0, killed), "the killed standby is not replaced")
        assert "standby was ended by SIGKILL" in stack.log.read_text()

        waiting = ready_standby(stack)
        ended = client.wait(submit(client, tmp_path))
        assert (ended.attempt, ended.error and ended.error.code) == (1, "media_unreadable")
        log = (stack.data / "logs" / "worker.log").read_text()
        ordered = log[log.index('"standby.ordered"') :]
        assert '"worker.started"' in ordered
        assert ended.id not in (stack.data / "logs" / "standby.log").read_text()
        assert rows(stack).get("worker") == waiting

        wait_for(lambda: ready_standby(stack) not in (0, waiting), "no standby follows")
        orphan = psutil.Process(ready_standby(stack))
        family = [orphan, *orphan.children(recursive=True)]
        assert len(family) > 1
        valkey = psutil.Process(stack.pid("valkey"))
        stack.process.kill()
        assert psutil.wait_procs(family, timeout=20)[1] == []
        valkey.terminate()
        valkey.wait(10)


def rows(stack: Stack) -> dict[str, int]:
    """Return the recorded processes of `up` by name."""
    return {name: row["pid"] for name, row in json.loads((stack.data / "children.json").read_text()).items()}


def ready_standby(stack: Stack) -> int:
    """Return the process id of the standby if it is ready, else 0."""
    pid, log = rows(stack).get("standby", 0), stack.data / "logs" / "standby.log"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return pid if any(line["event"] == "standby.ready" and line["pid"] == pid for line in lines) else 0


def submit(client: Client, folder: Path) -> str:
    """Submit a job that fails as soon as a worker reads its scene."""
    path = folder / "scene.tif"
    path.write_text("no scene")
    return client.submit("csmask", files={"scene": path}).id
