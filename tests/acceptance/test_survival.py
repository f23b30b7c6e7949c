"""SIGKILL in the middle of a scene: the job ends with the same bytes as if nothing had happened."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.client import Job
from tests.acceptance.stack import Stack, wait_for


@pytest.fixture(scope="module")
def undisturbed(stack: Stack, big_scene: Path) -> dict[str, str]:
    """Return the checksums of a run in peace."""
    with stack.client() as client:
        job = client.wait(client.submit("csmask", files={"scene": big_scene}).id)
    return checksums(job)


def checksums(job: Job) -> dict[str, str]:
    """Of the rasters and the picture; stats.json names the upload and so differs."""
    assert job.succeeded, job.error
    return {artifact.name: artifact.sha256 for artifact in job.artifacts if artifact.name != "stats.json"}


@pytest.mark.parametrize("victim", ["worker", "api", "valkey", "keeper"])
def test_a_job_outlives_the_sigkill_of(victim: str, stack: Stack, big_scene: Path, undisturbed: dict[str, str]) -> None:
    with stack.client() as client:
        job_id = client.submit("csmask", files={"scene": big_scene}).id
        wait_for(lambda: client.job(job_id).progress.done >= 1, "the job never started")
        assert not client.job(job_id).over
        stack.kill(victim)
        job = client.wait(job_id)
    assert checksums(job) == undisturbed
    assert job.attempt == (2 if victim == "worker" else 1)
