"""The public status of a job, and the keys of jobs and parts."""

from __future__ import annotations

import pytest

from penstock.jobs import Job, JobKey, Parts, State, Status, Submission


@pytest.mark.parametrize(
    ("state", "cancel_requested", "status"),
    [
        (State.QUEUED, False, Status.QUEUED),
        (State.DELAYED, False, Status.QUEUED),
        (State.RESERVED, False, Status.QUEUED),
        (State.RUNNING, False, Status.RUNNING),
        (State.RUNNING, True, Status.CANCELING),
        (State.SUCCEEDED, True, Status.SUCCEEDED),
        (State.CANCELED, True, Status.CANCELED),
    ],
)
def test_the_public_status_of_a_state(state: State, cancel_requested: bool, status: Status) -> None:
    submission = Submission(JobKey("default", "a"), "m", "default", {}, "f")
    assert Job(submission, state, created_s=0.0, cancel_requested=cancel_requested).status is status


@pytest.mark.parametrize(
    ("ended", "cancel_requested", "status"),
    [(1, False, Status.RUNNING), (1, True, Status.CANCELING), (2, False, Status.QUEUED)],
)
def test_a_job_runs_while_its_parts_do(ended: int, cancel_requested: bool, status: Status) -> None:
    submission = Submission(JobKey("default", "a"), "m", "default", {}, "f")
    job = Job(submission, State.DELAYED, 0.0, cancel_requested=cancel_requested, parts=Parts(2, ended))
    assert job.status is status


def test_a_part_always_has_the_same_id() -> None:
    key = JobKey("default", "0199-abc")
    assert key.part("d", 0, 3) == key.part("d", 0, 3)
    others = [key.part("d", 0, 4), key.part("e", 0, 3), JobKey("other", "0199-abc").part("d", 0, 3)]
    assert len({key.part("d", 0, 3), *others}) == 4


def test_a_job_key_reads_what_it_wrote() -> None:
    key = JobKey("default", "0199-abc")
    assert JobKey.parse(str(key)) == key
    assert key.prefix == "tenants/default/jobs/0199-abc/"
