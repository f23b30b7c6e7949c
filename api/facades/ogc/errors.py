"""Errors of OGC API - Processes: the standard's exception types and statuses."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType

from fastapi.responses import JSONResponse

from penstock import errors
from penstock.api.errors import problem
from penstock.errors import ErrorReport, InputError, PenstockError
from penstock.jobs import Job, Status

_OGC = "http://www.opengis.net/def/exceptions/ogcapi-processes-1/1.0/"
_INVALID = "InvalidParameterValue"

#: Error code -> the standard's `type`. Other codes keep Penstock's `type`.
KINDS: Mapping[str, str] = MappingProxyType(
    {
        errors.UnknownModel.code: f"{_OGC}no-such-process",
        errors.UnknownJob.code: f"{_OGC}no-such-job",
        errors.JobGone.code: f"{_OGC}no-such-job",
        errors.ResultNotReady.code: f"{_OGC}result-not-ready",
        errors.InvalidRequest.code: _INVALID,
        errors.InvalidInput.code: _INVALID,
    }
)
_NOT_FOUND = frozenset(
    {errors.UnknownModel.code, errors.UnknownJob.code, errors.JobGone.code, errors.ResultNotReady.code}
)
_INPUT_ERRORS = frozenset({InputError.code, *(kind.code for kind in InputError.__subclasses__())})


def as_ogc(report: ErrorReport, status: int, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return a report as a problem with the standard's `type` and status. `status` is that of the native API."""
    if report.code in _NOT_FOUND:
        status = HTTPStatus.NOT_FOUND
    elif status == HTTPStatus.UNPROCESSABLE_ENTITY:
        status = HTTPStatus.BAD_REQUEST
    return problem(report, status, headers, KINDS.get(report.code))


def failure_response(job: Job) -> JSONResponse:
    """Return the response for the results of a job without any: its error, or that it was dismissed."""
    if job.status is Status.CANCELED:
        return problem(errors.Canceled("the job was dismissed").report(), HTTPStatus.NOT_FOUND)
    report = job.error or PenstockError().report()
    return problem(report, _failure_status(report), kind=KINDS.get(report.code))


def _failure_status(report: ErrorReport) -> int:
    """Return the status of a failed job: a permanent failure, so never a status that invites a retry."""
    return HTTPStatus.BAD_REQUEST if report.code in _INPUT_ERRORS else HTTPStatus.INTERNAL_SERVER_ERROR
