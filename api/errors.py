"""Errors over HTTP: one table from exception class to status; every error is an RFC 9457 problem."""

from __future__ import annotations

import time
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
from penstock.api.encodings import ACCEPTED
from penstock.errors import ErrorReport, InvalidRequest, Issue, PenstockError
from penstock.json_body import sentence
from penstock.storage.spool import is_full, out_of_space

log = structlog.get_logger(__name__)

CONTENT_TYPE = "application/problem+json"
_HEADERS: Mapping[int, dict[str, str]] = MappingProxyType(
    {
        HTTPStatus.UNAUTHORIZED: {"WWW-Authenticate": "Bearer"},
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE: {"Accept-Encoding": ACCEPTED},
        HTTPStatus.REQUEST_TIMEOUT: {
            "Connection": "close"
        },  # the rest of the body is unread: the connection cannot be reused
    }
)
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
#: Writes a report, with status and headers, in the error format of an interface.
ErrorFormat = Callable[[ErrorReport, int, Mapping[str, str] | None], JSONResponse]
#: Seconds of `Retry-After` where a retryable error names none.
RETRY_AFTER_S = 5

#: Seconds between log lines of the same code: clients send a failed request again and again.
LOG_INTERVAL_S = 1.0


class SeldomLogged:
    """Limits log lines to one for each code in `LOG_INTERVAL_S`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: Code -> time of its next line, and lines left out since the last one.
        self._codes: dict[str, tuple[float, int]] = {}

    def left_out(self, code: str) -> int | None:
        """Return the number of lines left out before this one; None where this one is left out too."""
        now_s = self._clock()
        next_s, count = self._codes.get(code, (now_s, 0))
        if now_s < next_s:
            self._codes[code] = next_s, count + 1
            return None
        self._codes[code] = now_s + LOG_INTERVAL_S, 0
        return count


_LOGGED = SeldomLogged()

#: Exception class -> HTTP status. The nearest ancestor wins.
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
        errors.UnknownWorker: 404,
        errors.UnknownJob: 404,
        errors.UnknownArtifact: 404,
        errors.UnknownUpload: 404,
        errors.UnknownDelivery: 404,
        errors.UnknownEndpoint: 404,
        errors.UnknownSubscription: 404,
        errors.JobGone: 410,
        errors.EventsNotAwaited: 404,
        errors.UnknownBatch: 404,
        errors.BatchGone: 410,
        errors.PayloadTooLarge: 413,
        errors.IdempotencyMismatch: 422,
        errors.StateConflict: 409,
        errors.TooManyJobs: 429,
        errors.TooManyRequests: 429,
        errors.DeviceQuotaExceeded: 429,
        errors.StorageQuotaExceeded: 403,
        errors.ClientLeft: 499,
        errors.InputError: 422,
        errors.TensorsRefused: 403,
        errors.ServiceError: 503,
        errors.ProcessorFailed: 500,
        errors.RedisFailed: 500,
        errors.RecordTooNew: 500,
        errors.WaitOver: 504,
        errors.ObjectNotFound: 404,
        errors.ObjectExists: 409,
    }
)


def status_of(error: PenstockError) -> int:
    """Return the HTTP status of an error."""
    return next(STATUS[cls] for cls in type(error).__mro__ if cls in STATUS)


def error_of(report: ErrorReport) -> PenstockError:
    """Return the exception of a report; a `PenstockError` for an unknown code."""
    cls = next((cls for cls in _tree(PenstockError) if cls.code == report.code), PenstockError)
    return cls(report.detail, errors=report.errors)


def _tree(root: type[PenstockError]) -> Iterator[type[PenstockError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


def problem(
    report: ErrorReport, status: int, headers: Mapping[str, str] | None = None, kind: str | None = None
) -> JSONResponse:
    """Return a report as a problem+json response; `kind` replaces its `type`."""
    body = {"type": kind or f"urn:penstock:problem:{report.code}", "status": status, **report.to_json()}
    return JSONResponse(body, status, headers, media_type=CONTENT_TYPE)


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI description of problems with these statuses."""
    content = {CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    retry = {"Retry-After": {"description": "Seconds to wait before a retry.", "schema": {"type": "integer"}}}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": content}
        | ({"headers": retry} if status in (429, 503) else {})
        for status in statuses
    }


def install(
    app: FastAPI,
    formats: Mapping[str, ErrorFormat] = MappingProxyType({}),
    not_found_hint: Callable[[str], str | None] = lambda _: None,
) -> None:
    """Register handlers that answer errors with a problem, or in the format of their path prefix in `formats`.

    `not_found_hint` returns a sentence that 404 answers add for a path.
    """
    app.state.error_formats = formats
    app.state.not_found_hint = not_found_hint
    app.add_exception_handler(PenstockError, _on_penstock_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_parameters)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(OSError, _on_os_error)
    app.add_exception_handler(Exception, _on_bug)


async def _on_penstock_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, PenstockError)  # noqa: S101  (the registered class)
    return error_response(request, error, status_of(error))


def error_response(request: Request, error: PenstockError, status: int) -> JSONResponse:
    """Return the response to a request that failed with this error; log server errors, each code once a second."""
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR and (left_out := _LOGGED.left_out(error.code)) is not None:
        unsaid = {"left_out": left_out} if left_out else {}
        log.warning("request.failed", path=request.url.path, code=error.code, detail=error.detail, **unsaid)
    return unlogged_error_response(request, error, status)


def unlogged_error_response(request: Request, error: PenstockError, status: int) -> JSONResponse:
    """Return the same response as `error_response` without logging: a flood would fill the log."""
    report, headers = error.report(), _retry_after(error, status) | _HEADERS.get(status, {})
    return _answer(request, report, status, headers)


def _retry_after(error: PenstockError, status: int) -> dict[str, str]:
    if error.retry_after_s is None and not (error.retryable and status in (429, 503)):
        return {}
    return {"Retry-After": str(max(1, ceil(error.retry_after_s or RETRY_AFTER_S)))}


async def _on_invalid_parameters(request: Request, error: Exception) -> JSONResponse:
    """Answer FastAPI's validation error as an `InvalidRequest`."""
    assert isinstance(error, RequestValidationError)  # noqa: S101  (the registered class)
    # Parameters only (`penstock.api.body` reads bodies), so the issues have no JSON pointer.
    found = [Issue("", f"{' parameter '.join(map(str, e['loc'][:2]))} {sentence(e)}") for e in error.errors()]
    return await _on_penstock_error(request, InvalidRequest(errors=found))


async def _on_http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101  (the registered class)
    title = HTTPStatus(error.status_code).phrase
    hint = _hint(request) if error.status_code == HTTPStatus.NOT_FOUND else ""
    report = ErrorReport(title.lower().replace(" ", "_"), title, f"{title}.{hint}", retryable=False)
    wrong_method = error.status_code == HTTPStatus.METHOD_NOT_ALLOWED
    return _answer(request, report, error.status_code, {"Allow": _allowed(request)} if wrong_method else error.headers)


def _hint(request: Request) -> str:
    hint = request.app.state.not_found_hint(request.url.path)
    return "" if hint is None else f" {hint}"


def _allowed(request: Request) -> str:
    """Return the methods of all routes of the path; Starlette names those of one route only."""
    routes, scope = request.app.routes, dict(request.scope)
    known = [m for m in _METHODS if any(r.matches(scope | {"method": m})[0] is Match.FULL for r in routes)]
    return ", ".join(known)


async def _on_os_error(request: Request, error: Exception) -> JSONResponse:
    """Answer a request whose body did not fit on the disk; any other error of the system is a bug."""
    if isinstance(error, OSError) and is_full(error):
        return await _on_penstock_error(request, out_of_space(error))
    raise error


async def _on_bug(request: Request, error: Exception) -> JSONResponse:
    """Answer a request that failed with an unexpected exception; log the exception's type."""
    log.error("request.crashed", path=request.url.path, error=type(error).__name__)
    return _answer(request, PenstockError().report(), HTTPStatus.INTERNAL_SERVER_ERROR)


def _answer(
    request: Request, report: ErrorReport, status: int, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    return (_format(request) or problem)(report, status, headers)


def _format(request: Request) -> ErrorFormat | None:
    path, formats = request.scope["path"], request.app.state.error_formats
    return next((formats[prefix] for prefix in formats if f"{path}/".startswith(f"{prefix}/")), None)
