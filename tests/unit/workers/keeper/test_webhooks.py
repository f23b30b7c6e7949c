"""Webhooks: what is sent, how it is signed, and what an answer means."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
from standardwebhooks import Webhook as Verifier
from standardwebhooks.webhooks import WebhookVerificationError

from penstock.errors import InvalidInput, Issue
from penstock.jobs import Artifact, Delivery, Job, JobKey, Progress, State, Submission
from penstock.storage.redis.deliveries import DeliveryRecord
from penstock.workers.keeper.webhooks import (
    MAX_BODY_BYTES,
    SCHEDULE_S,
    DeliveryVerdict,
    body_of,
    signed_headers,
    verdict_on,
)

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
KEY = JobKey("default", "0199")
ARTIFACT = Artifact("classes.tif", "image/tiff", 10, "ab", "tenants/default/jobs/0199/attempts/1/classes.tif")
JOB = Job(
    Submission(KEY, "csmask", "default", {}, "f", metadata={"scene": "a"}),
    State.SUCCEEDED,
    created_s=1.0,
    completed_s=3.0,
    artifacts=(ARTIFACT,),
)
ROW = DeliveryRecord("msg_1", KEY, "job.succeeded", "http://h/", 3.0, 1, Delivery.PENDING, (), None)


def test_the_body_is_thin_and_names_artifacts_by_their_link() -> None:
    body = json.loads(body_of(ROW, JOB, "http://api"))
    assert body["type"] == "job.succeeded"
    assert body["timestamp"] == "1970-01-01T00:00:03Z"
    assert body["data"]["id"] == "0199"
    assert body["data"]["status"] == "succeeded"
    assert body["data"]["metadata"] == {"scene": "a"}
    assert body["data"]["artifacts"][0]["url"] == "http://api/v1/jobs/0199/artifacts/classes.tif"
    assert "key" not in body["data"]["artifacts"][0]


def test_the_body_is_the_same_on_every_try() -> None:
    assert body_of(ROW, JOB, "http://api") == body_of(replace(ROW, tries=7), JOB, "http://api")


def test_the_body_of_a_start_does_not_show_what_came_after_it() -> None:
    row = replace(ROW, event="job.started", created_s=2.0, attempt=1)
    running = replace(JOB, state=State.RUNNING, attempt=1, started_s=2.0, completed_s=None, artifacts=())
    body = body_of(row, running, "http://api")
    assert body == body_of(row, replace(JOB, attempt=3, started_s=2.9), "http://api")
    data = json.loads(body)["data"]
    assert (data["status"], data["attempt"], data["started_at"]) == ("running", 1, "1970-01-01T00:00:02Z")
    assert data["completed_at"] is None


def test_the_body_of_a_submission_does_not_show_what_came_after_it() -> None:
    row = replace(ROW, event="job.queued", created_s=1.0)
    queued = replace(JOB, state=State.QUEUED, completed_s=None, artifacts=())
    assert body_of(row, queued, "http://api") == body_of(row, replace(JOB, attempt=2, started_s=2.0), "http://api")


def test_a_body_that_would_be_too_large_leaves_out_what_can_be_read_elsewhere() -> None:
    big = replace(JOB, submission=replace(JOB.submission, metadata={"x": "y" * MAX_BODY_BYTES}))
    text = body_of(ROW, big, "http://api")
    assert len(text.encode()) <= MAX_BODY_BYTES
    assert json.loads(text)["data"]["metadata"] is None
    assert json.loads(text)["data"]["artifacts"]


def test_the_body_carries_an_output_that_is_small() -> None:
    done = replace(JOB, text="Two cats.", data={"labels": [{"label": "cat", "score": 0.5}]})
    wanted = {"text": "Two cats.", "json": {"labels": [{"label": "cat", "score": 0.5}]}}
    size = len(json.dumps(wanted, separators=(",", ":")))
    assert json.loads(body_of(ROW, done, "http://api", size))["data"]["output"] == wanted
    assert json.loads(body_of(ROW, done, "http://api", size - 1))["data"]["output"] is None
    assert json.loads(body_of(ROW, JOB, "http://api", size))["data"]["output"] is None
    failed = replace(done, state=State.FAILED)
    assert json.loads(body_of(replace(ROW, event="job.failed"), failed, "http://api", size))["data"]["output"] is None


def test_the_signature_passes_the_standards_own_verifier_and_no_other_body_does() -> None:
    body = body_of(ROW, JOB, "http://api")
    headers = signed_headers("msg_1", body, [SECRET], at=time.time())
    assert Verifier(SECRET).verify(body, headers)["type"] == "job.succeeded"
    with pytest.raises(WebhookVerificationError):
        Verifier(SECRET).verify(body + " ", headers)


@pytest.mark.parametrize(
    ("status", "tries", "retry_after_s", "verdict"),
    [
        (200, 1, None, DeliveryVerdict(Delivery.DELIVERED)),
        (204, 10, None, DeliveryVerdict(Delivery.DELIVERED)),
        (302, 1, None, DeliveryVerdict(Delivery.PENDING, 5)),
        (404, 2, None, DeliveryVerdict(Delivery.PENDING, 300)),
        (503, 1, 60.0, DeliveryVerdict(Delivery.PENDING, 60)),
        (503, 2, 60.0, DeliveryVerdict(Delivery.PENDING, 300)),
        (None, 9, None, DeliveryVerdict(Delivery.PENDING, 86_400)),
        (None, 10, None, DeliveryVerdict(Delivery.FAILED)),
        (410, 1, None, DeliveryVerdict(Delivery.FAILED)),
        (503, 1, 1e9, DeliveryVerdict(Delivery.PENDING, 86_400)),
    ],
)
def test_what_an_answer_means(
    status: int | None, tries: int, retry_after_s: float | None, verdict: DeliveryVerdict
) -> None:
    assert verdict_on(status, tries, retry_after_s=retry_after_s, draw=0.5) == verdict


def test_news_is_not_told_again_when_it_is_old() -> None:
    assert verdict_on(503, 1, retry_after_s=None, draw=0.5, not_retried=True) == DeliveryVerdict(Delivery.FAILED)
    assert verdict_on(200, 1, retry_after_s=None, draw=0.5, not_retried=True) == DeliveryVerdict(Delivery.DELIVERED)


def test_each_secret_that_signs_is_enough_for_a_receiver() -> None:
    body = body_of(ROW, JOB, "http://api")
    other = "whsec_" + "B" * 32
    headers = signed_headers("msg_1", body, [SECRET, other], at=time.time())
    assert len(headers["webhook-signature"].split(" ")) == 2
    for secret in (SECRET, other):
        assert Verifier(secret).verify(body, headers)["type"] == "job.succeeded"
    with pytest.raises(WebhookVerificationError):
        Verifier("whsec_" + "C" * 32).verify(body, headers)


def test_an_error_with_much_to_say_is_cut_to_its_beginning() -> None:
    issues = [Issue(f"/input/{n}", "is wrong") for n in range(1000)]
    failed = replace(JOB, state=State.FAILED, error=InvalidInput("no " * 10_000, errors=issues).report())
    text = body_of(replace(ROW, event="job.failed"), failed, "http://api")
    assert len(text.encode()) <= MAX_BODY_BYTES
    assert json.loads(text)["data"]["error"]["code"] == "invalid_input"


def test_progress_is_told_with_its_figures_and_the_status_of_the_job() -> None:
    running = replace(JOB, state=State.RUNNING, progress=Progress(3, 9, "tiles", "on the way"))
    data = json.loads(body_of(replace(ROW, event="job.progress"), running, "http://api"))["data"]
    assert (data["status"], data["progress"]) == (
        "running", {"done": 3, "total": 9, "unit": "tiles", "message": "on the way"}
    )  # fmt: skip


def test_the_schedule_goes_on_for_three_days() -> None:
    assert len(SCHEDULE_S) == 10
    assert 3 * 86_400 <= sum(SCHEDULE_S) <= 4 * 86_400
