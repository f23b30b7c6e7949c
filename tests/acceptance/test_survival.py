"""SIGKILL in the middle of a scene: the job ends with the same bytes as if nothing had happened."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from penstock.client import Job
from tests.support.stack import Stack, running, scene
from tests.support.web_server import in_thread

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def undisturbed(stack: Stack, big_scene: Path) -> dict[str, str]:
    """Return the checksums of a run in peace."""
    with stack.client() as client:
        job = client.wait(client.submit("csmask", files={"scene": big_scene}).id)
    return checksums(job)


def checksums(job: Job) -> dict[str, str]:
    """Return digests of the rasters and the picture; stats.json names the upload and so differs."""
    assert job.succeeded, job.error
    return {artifact.name: artifact.sha256 for artifact in job.artifacts if artifact.name != "stats.json"}


@pytest.mark.breadth(but=("worker", "valkey"))  # the scenario `worker_kills` kills API and keeper
@pytest.mark.parametrize("victim", ["worker", "api", "valkey", "keeper"])
def test_a_job_outlives_the_sigkill_of(victim: str, stack: Stack, big_scene: Path, undisturbed: dict[str, str]) -> None:
    with stack.client() as client:
        job_id = client.submit("csmask", files={"scene": big_scene}).id
        assert any(event.data.get("done") for event in client.events(job_id) if event.type == "job.progress")
        assert not client.job(job_id).over
        stack.kill(victim)
        job = client.wait(job_id)
    assert checksums(job) == undisturbed
    assert job.attempt == (2 if victim == "worker" else 1)


@pytest.mark.breadth
def test_a_worker_that_is_asked_to_leave_during_a_download_gives_the_job_back(tmp_path: Path) -> None:
    with stalling_once(scene()) as server:
        config = f'allowed_hosts = ["127.0.0.1:{server.server_port}"]\ndrain_s = 0.5\n'
        with running(tmp_path / "up", config=config) as stack, stack.client() as client:
            reference = f"http://127.0.0.1:{server.server_port}/scene.tif"
            job_id = client.submit("csmask", {"scene": reference}).id
            assert server.stalled.wait(30)
            os.kill(stack.pid("worker"), signal.SIGTERM)
            job = client.wait(job_id)
            events = [event.type for event in client.event_list(job_id)]
    assert job.succeeded
    assert (job.attempt, events.count("job.released"), events.count("job.requeued")) == (1, 1, 0)


class StallingServer(ThreadingHTTPServer):
    """Begins to send a file and stops in the middle, the first time; sends it the second time."""

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        self.body = path.read_bytes()
        self.stalled, self.ended = threading.Event(), threading.Event()
        super().__init__(("127.0.0.1", 0), StallingHandler)


class StallingHandler(BaseHTTPRequestHandler):
    server: StallingServer

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(self.server.body)))
        self.end_headers()
        if self.server.stalled.is_set():
            self.wfile.write(self.server.body)
            return
        self.wfile.write(self.server.body[:1000])
        self.server.stalled.set()
        self.server.ended.wait(60)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def stalling_once(path: Path) -> Iterator[StallingServer]:
    server = StallingServer(path)
    with in_thread(server):
        try:
            yield server
        finally:
            server.ended.set()
