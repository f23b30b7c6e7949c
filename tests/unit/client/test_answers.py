"""Answers of services that know fewer fields than the client, or more."""

from __future__ import annotations

from penstock.client.answers import Job, ModelInfo, Page, PenstockAPIError
from penstock.client.decoding import read
from penstock.errors import ErrorReport, Issue
from penstock.jobs import Status


def test_an_error_without_its_details_fails_no_page_of_jobs() -> None:
    bare = {"id": "j1", "model": "csmask", "status": "failed", "created_at": "2026-01-01T00:00:00Z"}
    errors = [{"code": "worker_lost"}, {"code": "invalid_input", "errors": [{"pointer": "/scene"}]}]
    page = read(Page, {"jobs": [{**bare, "error": error} for error in errors]})
    assert [job.error for job in page.jobs] == [
        ErrorReport("worker_lost", "", "", retryable=False),
        ErrorReport("invalid_input", "", "", retryable=False, errors=(Issue("/scene", ""),)),
    ]


def test_a_model_without_a_title_has_its_name_for_one() -> None:
    assert read(ModelInfo, {"name": "csmask"}).title == "csmask"
    assert read(ModelInfo, {"name": "csmask", "title": "Clouds"}).title == "Clouds"


def test_a_job_is_read_whatever_a_newer_service_adds() -> None:
    document = {
        "id": "0190",
        "model": "csmask",
        "status": "succeeded",
        "created_at": "2026-01-01T00:00:00Z",
        "attempt": 1,
        "output": {"text": None, "json": {"n": 1}},
        "a field of tomorrow": {},
        "artifacts": [{"name": "a.tif", "size_bytes": 3, "sha256": "x", "another": 1}],
        "error": None,
    }
    job = read(Job, document)

    assert (job.status, job.over, job.data, job.artifacts[0].name) == (Status.SUCCEEDED, True, {"n": 1}, "a.tif")
    assert job.raw is document


def test_a_problem_names_the_places() -> None:
    error = PenstockAPIError(
        {"detail": "it does not fit", "errors": [{"pointer": "/input/scene", "detail": "is required"}]}, status=422
    )
    assert str(error) == "it does not fit (/input/scene: is required)"
