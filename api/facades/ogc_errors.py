"""Refusals as OGC API - Processes has them: its exception types, and the statuses that it names for them."""

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
from penstock.api.errors import invalid_parameters, problem, refusal, status_of
from penstock.errors import InputError, PenstockError
from penstock.jobs import Job, Status
from penstock.reports import ErrorReport

_OGC = "http://www.opengis.net/def/exceptions/ogcapi-processes-1/1.0/"
_INVALID = "InvalidParameterValue"

#: `type` by our code; all others keep ours.
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
_FAULTS_OF_INPUT = frozenset({InputError.code, *(kind.code for kind in InputError.__subclasses__())})


class OgcRoute(APIRoute):
    """A route whose refusals are the standard's."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                return _refusal(request, invalid_parameters(error))
            except PenstockError as error:
                return _refusal(request, error)

        return answer


def failure(job: Job) -> JSONResponse:
    """Return why a job that ended has no results: its own error, or that it was dismissed."""
    if job.status is Status.CANCELED:
        return problem(errors.Canceled("the job was dismissed").report(), HTTPStatus.NOT_FOUND)
    report = job.error or PenstockError().report()
    return problem(report, _status_of_end(report), kind=KINDS.get(report.code))


def _refusal(request: Request, error: PenstockError) -> JSONResponse:
    return refusal(request, error, _status(error), KINDS.get(error.code))


def _status(error: PenstockError) -> int:
    if error.code in _NOT_FOUND:
        return HTTPStatus.NOT_FOUND
    status = status_of(error)
    return HTTPStatus.BAD_REQUEST if status == HTTPStatus.UNPROCESSABLE_ENTITY else status


def _status_of_end(report: ErrorReport) -> int:
    """Return the status of a failure that is for good: nothing gets better by asking again."""
    return HTTPStatus.BAD_REQUEST if report.code in _FAULTS_OF_INPUT else HTTPStatus.INTERNAL_SERVER_ERROR
