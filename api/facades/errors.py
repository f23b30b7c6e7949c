"""Error formats of the facades, by path: OpenAI's, vLLM's, RunPod's and that of OGC API - Processes.

In all of them an invalid request is 400 (422 in the native API) and an unknown model is 404.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from types import MappingProxyType

from fastapi.responses import JSONResponse

from penstock.api.errors import ErrorFormat
from penstock.api.facades.ogc.errors import as_ogc
from penstock.errors import ErrorReport, IdempotencyMismatch, Issue, UnknownModel, with_places

#: Penstock's error code -> OpenAI's, where they differ.
_OPENAI_CODES: Mapping[str, str] = MappingProxyType(
    {
        "unknown_model": "model_not_found",
        "model_unfit": "model_not_found",
        "unauthorized": "invalid_api_key",
        "too_many_jobs": "rate_limit_exceeded",
        "too_many_requests": "rate_limit_exceeded",
    }
)
_OPENAI_TYPES: Mapping[int, str] = MappingProxyType(
    {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
)
_VLLM_TYPES: Mapping[int, str] = MappingProxyType(
    {400: "BadRequestError", 404: "NotFoundError", 499: "Client Closed Request", 500: "InternalServerError"}
)
#: Field of a model's input -> the interface's name.
_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "audio": "file",
        "texts": "input",
        "max_new_tokens": "max_tokens",
        "scene": "data.data",
        "bands": "data.indices",
        "width": "size",
        "height": "size",
        "steps": "num_inference_steps",
    }
)
#: A processor's message that names its own input, and the replacement for OpenAI's clients.
_WITHOUT_TEMPLATE = re.compile(r"has no chat template: give `prompt`")
_USE_COMPLETIONS = "has no chat template; send a `prompt` to POST /openai/v1/completions instead"
_INPUT = re.compile(r"/input/(?!\d)")


def facade_status(report: ErrorReport, status: int) -> int:
    """Return the facade's HTTP status for a report and its status in the native API."""
    if report.code == UnknownModel.code:
        return HTTPStatus.NOT_FOUND
    if report.code == IdempotencyMismatch.code or status != HTTPStatus.UNPROCESSABLE_ENTITY:
        return status
    return HTTPStatus.BAD_REQUEST


def openai_error(report: ErrorReport, status: int) -> dict[str, object]:
    """Return a report as OpenAI's error object. `status` is the facade's."""
    issues = [Issue(issue.pointer, _without_template(issue.detail)) for issue in report.errors]
    report = replace(report, detail=_without_template(report.detail), errors=tuple(issues))
    fallback = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    return {
        "message": message(report),
        "type": _OPENAI_TYPES.get(status, fallback),
        "param": param(report),
        "code": _OPENAI_CODES.get(report.code, report.code),
    }


def vllm_error(report: ErrorReport, status: int) -> dict[str, object]:
    """Return a report as vLLM's error object, whose `code` is the HTTP status. `status` is the facade's."""
    return {
        "message": message(report),
        "type": _VLLM_TYPES.get(status) or HTTPStatus(status).phrase,
        "param": param(report),
        "code": int(status),
    }


def message(report: ErrorReport) -> str:
    """Return a report as one message, with the interface's field names."""
    places = dict.fromkeys(Issue(_named(issue.pointer), issue.detail) for issue in report.errors)
    return with_places(report.detail, list(places))


def param(report: ErrorReport) -> str | None:
    """Return the parameter of a report's first issue, or None."""
    return next((_named(issue.pointer) for issue in report.errors if issue.pointer), None)


def _without_template(detail: str) -> str:
    return _WITHOUT_TEMPLATE.sub(_USE_COMPLETIONS, detail)


def _named(pointer: str) -> str:
    """Return a JSON pointer in the form `messages[0].content`, with translated input names."""
    first, *rest = _INPUT.sub("/", pointer, count=1).removeprefix("/").split("/")
    if _INPUT.match(pointer):
        first = _NAMES.get(first, first)
    return first + "".join(f"[{part}]" if part.isdecimal() else f".{part}" for part in rest)


def _as_openai(report: ErrorReport, status: int, headers: Mapping[str, str] | None = None) -> JSONResponse:
    status = facade_status(report, status)
    # OpenAI's clients follow this header first. Without it they would retry a permanent failure.
    retry = {"x-should-retry": "true" if report.retryable else "false"}
    return JSONResponse({"error": openai_error(report, status)}, status, {**(headers or {}), **retry})


def _as_vllm(report: ErrorReport, status: int, headers: Mapping[str, str] | None = None) -> JSONResponse:
    status = facade_status(report, status)
    return JSONResponse({"error": vllm_error(report, status)}, status, headers)


def _as_runpod(report: ErrorReport, status: int, headers: Mapping[str, str] | None = None) -> JSONResponse:
    status = facade_status(report, status)
    return JSONResponse(
        {"error": with_places(report.detail, report.errors), "code": report.code, "status": status}, status, headers
    )


_WRONG_BASE_HINT = "OpenAI's interface is under /openai/v1; end the client's base URL with /openai/v1."
OPENAI_BASE = "/openai/v1"
#: The routes below `OPENAI_BASE`; a test compares them with the app.
OPENAI_ROUTES = (
    "/models", "/chat/completions", "/completions", "/embeddings", "/images/edits", "/images/generations",
    "/audio/transcriptions", "/audio/translations", "/files", "/batches", "/responses",
)  # fmt: skip
#: Routes of OpenAI's interface only. `/models` and `/batches` also exist in the native API.
_OPENAI_ONLY = (*(route for route in OPENAI_ROUTES if route not in ("/models", "/batches")), "/moderations")
#: Paths that OpenAI's clients request with a wrong base URL.
_WRONG_BASE = frozenset(f"{base}{route}" for base in ("", "/v1", "/openai") for route in _OPENAI_ONLY)
VLLM_ROUTES = ("/pooling", "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank", "/classify")
#: Path prefix -> error format. OpenAI's clients show only errors in OpenAI's format.
ERROR_FORMATS: Mapping[str, ErrorFormat] = MappingProxyType(
    {
        "/openai": _as_openai,
        **dict.fromkeys(VLLM_ROUTES, _as_vllm),
        "/ogc": as_ogc,
        "/runpod": _as_runpod,
        **dict.fromkeys(sorted(_WRONG_BASE), _as_openai),
    }
)


def not_found_hint(path: str) -> str | None:
    """Return the hint for an unknown path: the address of OpenAI's interface, or its routes."""
    if path in _WRONG_BASE:
        return _WRONG_BASE_HINT
    if f"{path}/".startswith(f"{OPENAI_BASE}/"):
        return f"This service has no such route; the routes below {OPENAI_BASE} are {', '.join(OPENAI_ROUTES)}."
    return None
