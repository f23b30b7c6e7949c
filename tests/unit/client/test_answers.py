"""Answers of services that know fewer fields than the client."""

from __future__ import annotations

from penstock.client.answers import ModelInfo, Page
from penstock.client.decoding import read
from penstock.errors import ErrorReport, Issue


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
