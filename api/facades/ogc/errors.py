"""Errors of OGC API - Processes: the standard's exception types and statuses."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from penstock import errors
from penstock.api.errors import error_response, invalid_parameters, problem, status_of
from penstock.errors import InputError, PenstockError
from penstock.jobs import Job, Status
from penstock.reports import ErrorReport

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


class OgcRoute(APIRoute):
    """A route whose errors follow the standard."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return a request handler that translates errors."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                return _error_response(request, invalid_parameters(error))
            except PenstockError as error:
                return _error_response(request, error)

        return answer


def failure_response(job: Job) -> JSONResponse:
    """Return the response for the results of a job without any: its error, or that it was dismissed."""
    if job.status is Status.CANCELED:
        return problem(errors.Canceled("the job was dismissed").report(), HTTPStatus.NOT_FOUND)
    report = job.error or PenstockError().report()
    return problem(report, _failure_status(report), kind=KINDS.get(report.code))


def _error_response(request: Request, error: PenstockError) -> JSONResponse:
    return error_response(request, error, _status(error), KINDS.get(error.code))


def _status(error: PenstockError) -> int:
    if error.code in _NOT_FOUND:
        return HTTPStatus.NOT_FOUND
    status = status_of(error)
    return HTTPStatus.BAD_REQUEST if status == HTTPStatus.UNPROCESSABLE_ENTITY else status


def _failure_status(report: ErrorReport) -> int:
    """Return the status of a failed job: a permanent failure, so never a status that invites a retry."""
    return HTTPStatus.BAD_REQUEST if report.code in _INPUT_ERRORS else HTTPStatus.INTERNAL_SERVER_ERROR
