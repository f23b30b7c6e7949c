"""Processes that start before their Redis and their object store: they wait, say so, and serve when both are there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import pytest

from penstock.client import Client
from penstock.jobs import Status
from tests.support.aws_emulators import REGION, Emulator, emulating
from tests.support.polling import wait_for
from tests.support.valkey import free_port, start_valkey

pytestmark = [pytest.mark.slow, pytest.mark.breadth]
BUCKET = "late"


@contextmanager
def process(role: str, folder: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / f"{role}.log").open("wb") as log:
        running = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli", role],
            env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield running
        running.terminate()
        assert running.wait(60) in (0, -signal.SIGTERM), role
    finally:
        running.kill()
        running.wait(30)


def test_processes_wait_for_a_redis_and_a_store_that_come_later(tmp_path: Path) -> None:
    redis_port, s3_port, port = free_port(), free_port(), free_port()
    environment = {
        "PENSTOCK_REDIS_URL": f"redis://127.0.0.1:{redis_port}/0", "PENSTOCK_OBJECT_STORE": f"s3://{BUCKET}",
        "PENSTOCK_S3__ENDPOINT_URL": f"http://127.0.0.1:{s3_port}", "PENSTOCK_S3__ACCESS_KEY_ID": "test",
        "PENSTOCK_S3__SECRET_ACCESS_KEY": "test", "PENSTOCK_S3__REGION": REGION, "PENSTOCK_SECRET": "s",
        "PENSTOCK_PORT": str(port), "PENSTOCK_DATA": str(tmp_path), "PENSTOCK_LEASE_S": "5",
    }  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    with ExitStack() as stack:
        roles = {
            role: stack.enter_context(process(role, tmp_path, environment)) for role in ("api", "keeper", "worker")
        }
        wait_for(lambda: _ready(url) is not None, "the API does not listen")
        assert _ready(url) == {"/job_store", "/object_store"}
        for role in ("keeper", "worker"):
            log = tmp_path / f"{role}.log"
            wait_for(lambda log=log: "redis.away" in log.read_text(), f"the {role} does not say that it waits")

        valkey = start_valkey(tmp_path / "valkey", at=redis_port)
        stack.callback(valkey.kill)
        wait_for(lambda: _ready(url) == {"/object_store"}, "the API does not find Redis")
        wait_for(lambda: "worker.started" in (tmp_path / "worker.log").read_text(), "the worker does not find Redis")
        assert all(running.poll() is None for running in roles.values())

        emulator: Emulator = stack.enter_context(emulating("moto", tmp_path, s3_port))
        emulator.client("s3").create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
        wait_for(lambda: _ready(url) == set(), "the API is not ready")
        (tmp_path / "text.tif").write_text("no scene")
        with Client(url, patience_s=90) as client:
            job = client.wait(client.submit("csmask", files={"scene": tmp_path / "text.tif"}).id)
        assert (job.status, job.error.code if job.error else "") == (Status.FAILED, "media_unreadable")
        assert all(running.poll() is None for running in roles.values())


def _ready(url: str) -> set[str] | None:
    """Return the parts that are not ready; None while the API does not listen."""
    try:
        answer = httpx2.get(f"{url}/readyz", trust_env=False, timeout=10)
    except httpx2.HTTPError:
        return None
    return {error["pointer"] for error in answer.json().get("errors", [])}
