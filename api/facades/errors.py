"""Errors as the clients of others' interfaces know them: OpenAI's below `/openai`, vLLM's at `/pooling`.

A request that does not fit is 400 there (422 is for problems of our own API), and an unknown model 404.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from types import MappingProxyType

from fastapi.responses import JSONResponse

from penstock.api.errors import Shape
from penstock.errors import IdempotencyMismatch, UnknownModel
from penstock.reports import ErrorReport, Issue, with_places

#: Our codes that OpenAI has a word of its own for.
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
#: Fields of our models' input that the interfaces call otherwise.
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
#: What our models say in the words of their own input, as OpenAI's interface has it.
_WITHOUT_TEMPLATE = re.compile(r"has no chat template: give `prompt`")
_COMPLETES = "has no chat template, so it does not chat: POST /openai/v1/completions has it continue a `prompt`"
_INPUT = re.compile(r"/input/(?!\d)")


def facade_status(report: ErrorReport, status: int) -> int:
    """Return the HTTP status that a facade gives a report which is of this status in our own API."""
    if report.code == UnknownModel.code:
        return HTTPStatus.NOT_FOUND
    if report.code == IdempotencyMismatch.code or status != HTTPStatus.UNPROCESSABLE_ENTITY:
        return status
    return HTTPStatus.BAD_REQUEST


def openai_error(report: ErrorReport, status: int) -> dict[str, object]:
    """Return a report as OpenAI's error object. `status` is the facade's."""
    said = [Issue(issue.pointer, _without_template(issue.detail)) for issue in report.errors]
    report = replace(report, detail=_without_template(report.detail), errors=tuple(said))
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
    """Return the sentence of a report with what is wrong and where, in the words of the interface."""
    places = [type(issue)(_named(issue.pointer), issue.detail) for issue in report.errors]
    return with_places(report.detail, places)


def param(report: ErrorReport) -> str | None:
    """Return the parameter that a report is about first, or None."""
    return next((_named(issue.pointer) for issue in report.errors if issue.pointer), None)


def _without_template(said: str) -> str:
    return _WITHOUT_TEMPLATE.sub(_COMPLETES, said)


def _named(pointer: str) -> str:
    """Return a JSON pointer as `messages[0].content`, with the names of our models' input translated."""
    first, *rest = _INPUT.sub("/", pointer, count=1).removeprefix("/").split("/")
    if _INPUT.match(pointer):
        first = _NAMES.get(first, first)
    return first + "".join(f"[{part}]" if part.isdecimal() else f".{part}" for part in rest)


def _as_openai(report: ErrorReport, status: int, headers: Mapping[str, str] | None = None) -> JSONResponse:
    status = facade_status(report, status)
    # What OpenAI's clients go by before anything else: they would repeat a job that fails for good.
    told = {"x-should-retry": "true" if report.retryable else "false"}
    return JSONResponse({"error": openai_error(report, status)}, status, {**(headers or {}), **told})


def _as_vllm(report: ErrorReport, status: int, headers: Mapping[str, str] | None = None) -> JSONResponse:
    status = facade_status(report, status)
    return JSONResponse({"error": vllm_error(report, status)}, status, headers)


_OPENAI_IS_AT = "OpenAI's interface is below /openai/v1: that is the end of its clients' base URL."
OPENAI_BASE = "/openai/v1"
#: Those that there are; a test holds them against the routes.
OPENAI_ROUTES = (
    "/models", "/chat/completions", "/completions", "/embeddings", "/images/generations", "/audio/transcriptions",
    "/audio/translations", "/files", "/batches",
)  # fmt: skip
_NOT_OURS = ("/responses", "/moderations")
#: Those that are OpenAI's alone: what our own interface calls alike is not told where OpenAI's is.
_ASKED_ELSEWHERE = (*(route for route in OPENAI_ROUTES if route not in ("/models", "/batches")), *_NOT_OURS)
#: Paths that OpenAI's clients ask for with another base URL.
_WRONG_BASE = frozenset(f"{base}{route}" for base in ("", "/v1", "/openai") for route in _ASKED_ELSEWHERE)
#: By the prefix of their paths. OpenAI's clients show nobody what an error of another shape says.
SHAPES: Mapping[str, Shape] = MappingProxyType(
    {"/openai": _as_openai, "/pooling": _as_vllm, **dict.fromkeys(sorted(_WRONG_BASE), _as_openai)}
)


def elsewhere(path: str) -> str | None:
    """Say of a path that is not there where OpenAI's interface is, or below it which routes there are."""
    if path in _WRONG_BASE:
        return _OPENAI_IS_AT
    if f"{path}/".startswith(f"{OPENAI_BASE}/"):
        return f"This service has no such route; below {OPENAI_BASE} there are {', '.join(OPENAI_ROUTES)}."
    return None
