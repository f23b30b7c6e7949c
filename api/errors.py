"""Errors on the wire: one table from exception class to HTTP status, and RFC 9457 problems for everything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from math import ceil
from types import MappingProxyType
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from penstock import errors
from penstock.errors import ErrorReport, InvalidRequest, Issue, PenstockError, UnknownModel

log = structlog.get_logger(__name__)

CONTENT_TYPE = "application/problem+json"
#: When an error that asks for patience does not say how much.
RETRY_AFTER_S = 5


class ModelNotServed(UnknownModel):
    """There is no such model."""


#: The nearest ancestor wins.
STATUS: Mapping[type[PenstockError], int] = MappingProxyType(
    {
        PenstockError: 500,
        errors.RequestError: 400,
        errors.BodyTimeout: 408,
        errors.UnsupportedContentType: 415,
        errors.InvalidRequest: 422,
        errors.HostRefused: 421,
        errors.LinkRefused: 403,
        errors.UnknownModel: 404,
        ModelNotServed: 422,
        errors.UnknownQueue: 404,
        errors.UnknownJob: 404,
        errors.UnknownArtifact: 404,
        errors.UnknownUpload: 404,
        errors.UnknownDelivery: 404,
        errors.JobGone: 410,
        errors.PayloadTooLarge: 413,
        errors.IdempotencyMismatch: 422,
        errors.StateConflict: 409,
        errors.TooManyJobs: 429,
        errors.InputError: 422,
        errors.MediaTooLarge: 413,
        errors.ServiceError: 503,
        errors.ProcessorFailed: 500,
        errors.ObjectNotFound: 404,
        errors.ObjectExists: 409,
    }
)


def status_of(error: PenstockError) -> int:
    """Return the HTTP status of an error."""
    return next(STATUS[cls] for cls in type(error).__mro__ if cls in STATUS)


def problem(report: ErrorReport, status: int, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return a report as a problem+json response."""
    body = {"type": f"urn:penstock:problem:{report.code}", "status": status, **report.to_json()}
    return JSONResponse(body, status, headers, media_type=CONTENT_TYPE)


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return what OpenAPI says of a route that answers with problems of these statuses."""
    content = {CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


def issues(found: Iterable[Mapping[str, Any]]) -> tuple[Issue, ...]:
    """Return pydantic's errors of a body as issues."""
    return tuple(Issue(pointer(error["loc"]), str(error["msg"])) for error in found)


def pointer(path: Iterable[str | int]) -> str:
    """Return the JSON pointer (RFC 6901) of a path."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def install(app: FastAPI) -> None:
    """Make the app answer every error with a problem."""
    app.add_exception_handler(PenstockError, _on_penstock_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_parameters)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_bug)


async def _on_penstock_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, PenstockError)  # noqa: S101  (what the handler is registered for)
    status = status_of(error)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log.warning("request.failed", path=request.url.path, code=error.code, detail=error.detail)
    # Behind half a body no other request can come.
    closing = {"Connection": "close"} if status == HTTPStatus.REQUEST_TIMEOUT else {}
    return problem(error.report(), status, _patience(error, status) | closing)


def _patience(error: PenstockError, status: int) -> dict[str, str]:
    if error.retry_after_s is None and not (error.retryable and status in (429, 503)):
        return {}
    return {"Retry-After": str(max(1, ceil(error.retry_after_s or RETRY_AFTER_S)))}


async def _on_invalid_parameters(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101  (what the handler is registered for)
    # Of parameters only (bodies are read by `penstock.api.body`): no JSON pointer leads there.
    found = [Issue("", f"{' parameter '.join(map(str, e['loc'][:2]))}: {e['msg']}") for e in error.errors()]
    return await _on_penstock_error(request, InvalidRequest(errors=found))


async def _on_http_exception(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101  (what the handler is registered for)
    title = HTTPStatus(error.status_code).phrase
    report = ErrorReport(title.lower().replace(" ", "_"), title, f"{title}.", retryable=False)
    return problem(report, error.status_code, error.headers)


async def _on_bug(request: Request, error: Exception) -> JSONResponse:
    log.error("request.broke", path=request.url.path, error=type(error).__name__)
    return problem(PenstockError().report(), HTTPStatus.INTERNAL_SERVER_ERROR)
