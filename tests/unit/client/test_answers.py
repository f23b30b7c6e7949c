"""Answers: their fields are the API's, of services that know fewer fields than the client, or more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime
from enum import Enum
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from pydantic import BaseModel

from penstock.api.routes import models, queues, usage
from penstock.api.schemas import batches, jobs, webhooks
from penstock.client.answers import (
    BatchPage,
    DeliveryPage,
    Event,
    Job,
    JobLog,
    ModelInfo,
    Page,
    PenstockAPIError,
    Queue,
    UsageReport,
    WebhookEndpoint,
    Worker,
    WorkerLine,
)
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


def part_at(schema: Mapping[str, Any], part: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Return the schema of the value at a path such as `output.text`, without null."""
    for name in (*(path.split(".") if path else ()), ""):
        part = next((each for each in part.get("anyOf", ()) if each.get("type") != "null"), part)
        if "$ref" in part:
            part = schema["$defs"][part["$ref"].removeprefix("#/$defs/")]
        part = part["properties"][name] if name else part
    return part


def check(kind: Any, schema: Mapping[str, Any], part: Mapping[str, Any], place: str) -> None:
    """Assert that what the schema describes is read as this type."""
    if NoneType in get_args(kind):
        [kind] = (each for each in get_args(kind) if each is not NoneType)
    if get_origin(kind) is tuple:
        assert part["type"] == "array", place
        check(get_args(kind)[0], schema, part_at(schema, part["items"], ""), f"{place}[]")
    elif is_dataclass(kind):
        for each in fields(kind):
            path = each.metadata.get("path", each.name)
            found = part_at(schema, part, path)
            check(get_type_hints(kind)[each.name], schema, found, f"{place}.{path}")
    elif isinstance(kind, type) and issubclass(kind, Enum):
        assert part["enum"] == [member.value for member in kind], place
    elif get_origin(kind) is Literal:
        assert {*part["enum"]} == {*get_args(kind)}, place
    elif kind in (datetime, date):
        assert part["format"] == {datetime: "date-time", date: "date"}[kind], place
    else:
        assert part["type"] in KINDS[get_origin(kind) or kind], place


KINDS = {
    str: ("string",), bool: ("boolean",), int: ("integer",), float: ("number", "integer"), Mapping: ("object",),
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        (Page, jobs.JobList), (Event, jobs.EventView), (JobLog, jobs.LineList), (BatchPage, batches.BatchList),
        (ModelInfo, models.ModelView), (Queue, queues.QueueView), (Worker, queues.WorkerView),
        (WorkerLine, queues.WorkerLineView), (UsageReport, usage.UsageReport),
        (WebhookEndpoint, webhooks.EndpointSecretView), (DeliveryPage, webhooks.DeliveryPageView),
    ],
)  # fmt: skip
def test_an_answer_has_fields_of_the_api_with_their_types(kind: type, schema: type[BaseModel]) -> None:
    found = schema.model_json_schema(mode="serialization")
    check(kind, found, found, kind.__name__)
