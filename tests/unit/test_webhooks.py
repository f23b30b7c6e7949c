"""Webhooks: what is sent, how it is signed, and what an answer means."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
from standardwebhooks import Webhook as Verifier
from standardwebhooks.webhooks import WebhookVerificationError

from penstock.jobs import Artifact, Delivery, Job, JobKey, State, Submission
from penstock.storage.deliveries import DeliveryRecord
from penstock.workers.webhooks import MAX_BODY_BYTES, SCHEDULE_S, Verdict, body_of, judge, signed_headers

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


def test_a_body_that_would_be_too_large_leaves_out_what_can_be_read_elsewhere() -> None:
    big = replace(JOB, submission=replace(JOB.submission, metadata={"x": "y" * MAX_BODY_BYTES}))
    text = body_of(ROW, big, "http://api")
    assert len(text.encode()) <= MAX_BODY_BYTES
    assert json.loads(text)["data"]["metadata"] is None
    assert json.loads(text)["data"]["artifacts"]


def test_the_signature_passes_the_standards_own_verifier_and_no_other_body_does() -> None:
    body = body_of(ROW, JOB, "http://api")
    headers = signed_headers("msg_1", body, SECRET, at=time.time())
    assert Verifier(SECRET).verify(body, headers)["type"] == "job.succeeded"
    with pytest.raises(WebhookVerificationError):
        Verifier(SECRET).verify(body + " ", headers)


@pytest.mark.parametrize(
    ("status", "tries", "retry_after_s", "verdict"),
    [
        (200, 1, None, Verdict(Delivery.DELIVERED)),
        (204, 10, None, Verdict(Delivery.DELIVERED)),
        (302, 1, None, Verdict(Delivery.PENDING, 5)),
        (404, 2, None, Verdict(Delivery.PENDING, 300)),
        (503, 1, 60.0, Verdict(Delivery.PENDING, 60)),
        (503, 2, 60.0, Verdict(Delivery.PENDING, 300)),
        (None, 9, None, Verdict(Delivery.PENDING, 86_400)),
        (None, 10, None, Verdict(Delivery.FAILED)),
        (410, 1, None, Verdict(Delivery.FAILED)),
    ],
)
def test_what_an_answer_means(status: int | None, tries: int, retry_after_s: float | None, verdict: Verdict) -> None:
    assert judge(status, tries, retry_after_s=retry_after_s, draw=0.5) == verdict


def test_the_schedule_goes_on_for_three_days() -> None:
    assert len(SCHEDULE_S) == 10
    assert 3 * 86_400 <= sum(SCHEDULE_S) <= 4 * 86_400
