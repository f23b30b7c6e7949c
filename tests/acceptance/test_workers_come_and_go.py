"""`penstock up` with a range of workers: they come when jobs wait and leave when they are idle."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from penstock.client import Client
from tests.support.polling import wait_for
from tests.support.stack import Stack, running

pytestmark = pytest.mark.slow


@pytest.mark.breadth
def test_workers_come_for_jobs_and_leave_and_two_api_processes_share_an_address(tmp_path: Path) -> None:
    config = "idle_exit_s = 3\nslots = 1\n"
    options = ("--workers", "0..2", "--api", "2")
    with running(tmp_path / "up", config=config, options=options) as stack, stack.client() as client:
        wait_for(lambda: said(stack, "left after 0 jobs"), "the worker that published the models does not leave")
        assert client.queue().workers == 0

        jobs = [submit(client, tmp_path, number) for number in range(4)]
        ended = [client.wait(job) for job in jobs]
        assert [job.attempt for job in ended] == [1] * 4
        assert {job.error.code if job.error else "" for job in ended} == {"media_unreadable"}
        wait_for(lambda: client.queue().workers == 0, "the workers do not leave")
        log = stack.log.read_text()
        assert "worker  process" in log
        assert "worker-3" not in log
        assert "killed" not in log
        assert "next start" not in log

        asked = requests_counted(stack)
        for _ in range(20):
            with Client(stack.url) as other:  # a connection of its own, to either process
                other.queue()
        assert requests_counted(stack) == asked + 20

        stack.kill("api")
        for _ in range(20):
            with Client(stack.url, patience_s=10) as other:
                assert other.queue().workers == 0
        wait_for(lambda: said(stack, "api     runs again"), "the killed API process is not replaced")


def requests_counted(stack: Stack) -> int:
    """Return how many looks at the queue all API processes together have counted."""
    metrics = httpx2.get(f"{stack.url}/metrics").text
    rows = [row for row in metrics.splitlines() if row.startswith("penstock_http_requests_total{")]
    return sum(int(float(row.split()[-1])) for row in rows if 'route="/v1/queues/{name}"' in row)


def said(stack: Stack, words: str) -> bool:
    return words in stack.log.read_text()


def submit(client: Client, folder: Path, number: int) -> str:
    """Submit a job that fails as soon as a worker reads its scene."""
    path = folder / f"{number}.tif"
    path.write_text(f"no scene {number}")
    return client.submit("csmask", files={"scene": path}).id
