"""Errors on the wire: one table from exception class to HTTP status, and RFC 9457 problems for everything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from math import ceil
from types import MappingProxyType
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match

from penstock import errors
from penstock.documents import sentence
from penstock.errors import InvalidRequest, PenstockError
from penstock.reports import ErrorReport, Issue

log = structlog.get_logger(__name__)

CONTENT_TYPE = "application/problem+json"
_HEADERS: Mapping[int, dict[str, str]] = MappingProxyType(
    {
        HTTPStatus.UNAUTHORIZED: {"WWW-Authenticate": "Bearer"},
        HTTPStatus.REQUEST_TIMEOUT: {"Connection": "close"},  # behind half a body no other request can come
    }
)
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
#: Writes a report with its status and headers as the clients of some paths know errors.
Shape = Callable[[ErrorReport, int, Mapping[str, str] | None], JSONResponse]
#: When an error that asks for patience does not say how much.
RETRY_AFTER_S = 5


#: The nearest ancestor wins.
STATUS: Mapping[type[PenstockError], int] = MappingProxyType(
    {
        PenstockError: 500,
        errors.RequestError: 400,
        errors.Unauthorized: 401,
        errors.InsufficientScope: 403,
        errors.BodyTimeout: 408,
        errors.UnsupportedContentType: 415,
        errors.InvalidRequest: 422,
        errors.HostRefused: 421,
        errors.LinkRefused: 403,
        errors.OriginRefused: 403,
        errors.UnknownModel: 404,
        errors.ModelNotServed: 422,
        errors.UnknownQueue: 404,
        errors.UnknownJob: 404,
        errors.UnknownArtifact: 404,
        errors.UnknownUpload: 404,
        errors.UnknownDelivery: 404,
        errors.UnknownEndpoint: 404,
        errors.JobGone: 410,
        errors.EventsNotAwaited: 404,
        errors.UnknownBatch: 404,
        errors.BatchGone: 410,
        errors.PayloadTooLarge: 413,
        errors.IdempotencyMismatch: 422,
        errors.StateConflict: 409,
        errors.TooManyJobs: 429,
        errors.TooManyRequests: 429,
        errors.ClientLeft: 499,
        errors.InputError: 422,
        errors.TensorsRefused: 403,
        errors.ServiceError: 503,
        errors.ProcessorFailed: 500,
        errors.WaitOver: 504,
        errors.ObjectNotFound: 404,
        errors.ObjectExists: 409,
    }
)


def status_of(error: PenstockError) -> int:
    """Return the HTTP status of an error."""
    return next(STATUS[cls] for cls in type(error).__mro__ if cls in STATUS)


def error_of(report: ErrorReport) -> PenstockError:
    """Return the error that a report tells of, to be raised again; a `PenstockError` for a code of nobody here."""
    cls = next((cls for cls in _tree(PenstockError) if cls.code == report.code), PenstockError)
    return cls(report.detail, errors=report.errors)


def _tree(root: type[PenstockError]) -> Iterator[type[PenstockError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


def problem(
    report: ErrorReport, status: int, headers: Mapping[str, str] | None = None, kind: str | None = None
) -> JSONResponse:
    """Return a report as a problem+json response; `kind` is its `type`, where that is not ours."""
    body = {"type": kind or f"urn:penstock:problem:{report.code}", "status": status, **report.to_json()}
    return JSONResponse(body, status, headers, media_type=CONTENT_TYPE)


def answer(error: PenstockError, status: int | None = None, kind: str | None = None) -> JSONResponse:
    """Return what is answered to a request that met this error: a problem of its own status and `type`, or of these."""
    status = status or status_of(error)
    return problem(error.report(), status, _patience(error, status) | _HEADERS.get(status, {}), kind)


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return what OpenAPI says of a route that answers with problems of these statuses."""
    content = {CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    patience = {"Retry-After": {"description": "Seconds, where another try may help.", "schema": {"type": "integer"}}}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": content}
        | ({"headers": patience} if status in (429, 503) else {})
        for status in statuses
    }


def install(
    app: FastAPI,
    shapes: Mapping[str, Shape] = MappingProxyType({}),
    elsewhere: Callable[[str], str | None] = lambda _: None,
) -> None:
    """Make the app answer every error with a problem, or below a prefix of `shapes` with what that makes of it.

    `elsewhere` says of a path that is not there where to look instead, if it knows.
    """
    app.state.error_shapes = shapes
    app.state.elsewhere = elsewhere
    app.add_exception_handler(PenstockError, _on_penstock_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_parameters)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_bug)


async def _on_penstock_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, PenstockError)  # noqa: S101  (what the handler is registered for)
    return refusal(request, error, status_of(error))


def refusal(request: Request, error: PenstockError, status: int, kind: str | None = None) -> JSONResponse:
    """Return an error as a problem of this status and `type`."""
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log.warning("request.failed", path=request.url.path, code=error.code, detail=error.detail)
    return unlogged_refusal(request, error, status, kind)


def unlogged_refusal(request: Request, error: PenstockError, status: int, kind: str | None = None) -> JSONResponse:
    """Return what `refusal` does without a line in the log, which a flood would fill."""
    write = _shape(request)
    if write is not None:
        return write(error.report(), status, _patience(error, status) | _HEADERS.get(status, {}))
    return answer(error, status, kind)


def _patience(error: PenstockError, status: int) -> dict[str, str]:
    if error.retry_after_s is None and not (error.retryable and status in (429, 503)):
        return {}
    return {"Retry-After": str(max(1, ceil(error.retry_after_s or RETRY_AFTER_S)))}


async def _on_invalid_parameters(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101  (what the handler is registered for)
    return await _on_penstock_error(request, invalid_parameters(error))


def invalid_parameters(error: RequestValidationError) -> InvalidRequest:
    """Return FastAPI's error as ours."""
    # Of parameters only (bodies are read by `penstock.api.body`): no JSON pointer leads there.
    found = [Issue("", f"{' parameter '.join(map(str, e['loc'][:2]))} {sentence(e)}") for e in error.errors()]
    return InvalidRequest(errors=found)


async def _on_http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101  (what the handler is registered for)
    title = HTTPStatus(error.status_code).phrase
    hint = _elsewhere(request) if error.status_code == HTTPStatus.NOT_FOUND else ""
    report = ErrorReport(title.lower().replace(" ", "_"), title, f"{title}.{hint}", retryable=False)
    wrong_method = error.status_code == HTTPStatus.METHOD_NOT_ALLOWED
    return _answer(request, report, error.status_code, {"Allow": _allowed(request)} if wrong_method else error.headers)


def _elsewhere(request: Request) -> str:
    hint = request.app.state.elsewhere(request.url.path)
    return "" if hint is None else f" {hint}"


def _allowed(request: Request) -> str:
    """Return the methods that the path knows: they are several routes, of which Starlette names one's alone."""
    routes, scope = request.app.routes, dict(request.scope)
    known = [m for m in _METHODS if any(r.matches(scope | {"method": m})[0] is Match.FULL for r in routes)]
    return ", ".join(known)


async def _on_bug(request: Request, error: Exception) -> JSONResponse:
    log.error("request.broke", path=request.url.path, error=type(error).__name__)
    return _answer(request, PenstockError().report(), HTTPStatus.INTERNAL_SERVER_ERROR)


def _answer(
    request: Request, report: ErrorReport, status: int, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    return (_shape(request) or problem)(report, status, headers)


def _shape(request: Request) -> Shape | None:
    path, shapes = request.url.path, request.app.state.error_shapes
    return next((shapes[prefix] for prefix in shapes if f"{path}/".startswith(f"{prefix}/")), None)
