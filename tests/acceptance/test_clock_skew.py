"""Machines whose clocks differ: times and leases are those of Redis, so that nothing comes early, late or twice."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from redis import Redis

from penstock.up.valkey import recorded_url
from tests.acceptance.test_survival import checksums
from tests.support.polling import wait_for
from tests.support.stack import Stack, running

pytestmark = [pytest.mark.alone, pytest.mark.breadth]

#: More than every lease.
SKEW_S = 90
LEASE_S = 5


@contextmanager
def skewed(stack: Stack, skew_s: int, role: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process of the service as on a machine whose clock is off by `skew_s`."""
    binary = shutil.which("faketime")
    if binary is None:
        reason = "needs faketime (infra/apt.txt)"
        if "CI" in os.environ:
            pytest.fail(reason)
        pytest.skip(reason)
    # The command itself would stay as the parent of the process, which would outlive its SIGKILL.
    command = [binary, "-m", "-f", "+0s", "printenv", "LD_PRELOAD"]
    library = subprocess.run(command, check=True, capture_output=True, text=True)
    env = os.environ | {
        "LD_PRELOAD": library.stdout.strip(),
        "FAKETIME": f"{skew_s:+}s",
        "PENSTOCK_CONFIG": str(stack.data / "penstock.toml"),
        "PENSTOCK_DATA": str(stack.data),
        "PENSTOCK_REDIS_URL": recorded_url(stack.data / "valkey") or "",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    command = [sys.executable, "-m", "penstock.cli", role]
    with (stack.data / f"{role}{skew_s:+}.log").open("ab") as out:
        process = subprocess.Popen(command, env=env, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(60)


@contextmanager
def held(stack: Stack, role: str) -> Iterator[None]:
    """Stop a process that `up` started, as if its machine hung."""
    pid = stack.pid(role)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def leader(stack: Stack) -> str | None:
    """Return the name of the keeper that leads."""
    with Redis.from_url(recorded_url(stack.data / "valkey") or "", decode_responses=True) as client:
        found: str | None = client.get("penstock:keeper")
        return found


def led_by_another(stack: Stack, first: str | None) -> bool:
    return leader(stack) not in (None, first)


@pytest.mark.parametrize("skew_s", [SKEW_S, -SKEW_S])
def test_a_job_outlives_its_worker_between_machines_whose_clocks_are_minutes_apart(
    tmp_path: Path, big_scene: Path, skew_s: int
) -> None:
    with running(tmp_path / "up", config=f"lease_s = {LEASE_S}\n") as stack, stack.client() as client:
        undisturbed = checksums(client.wait(client.submit("csmask", files={"scene": big_scene}).id))
        first = leader(stack)
        with skewed(stack, skew_s, "keeper"), held(stack, "keeper"), skewed(stack, -skew_s, "worker") as worker:
            wait_for(lambda: led_by_another(stack, first), "the other keeper does not lead", timeout_s=60)
            wait_for(lambda: len(client.workers()) == 2, "the other worker does not report", timeout_s=60)
            begun = datetime.now(UTC)
            with held(stack, "worker"):
                job_id = client.submit("csmask", files={"scene": big_scene}).id
                assert any(event.data.get("done") for event in client.events(job_id) if event.type == "job.progress")
                worker.kill()
            job = client.wait(job_id)
            ended = datetime.now(UTC)
    assert checksums(job) == undisturbed
    assert job.attempt == 2
    assert job.started_at is not None
    assert job.completed_at is not None
    second = timedelta(seconds=1)
    assert begun - second <= job.created_at <= job.started_at <= job.completed_at <= ended + second
