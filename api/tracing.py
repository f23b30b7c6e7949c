"""W3C trace context: a valid `traceparent` is added to log lines and to the response; an invalid one is ignored.

Requests with one, and those that submit a job, have a span.
"""

from __future__ import annotations

import re
import time
import uuid

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.jobs import JobKey, trace_of
from penstock.observation.job_spans import Context, Span, SpanKind, root_of, within
from penstock.observation.telemetry import NoSpans, Spans

#: Version ff and ids of zeros are invalid. Versions after 00 may have further fields.
_TRACEPARENT = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?P<trace>(?!0{32})[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?P<more>-.*)?"
)
#: Characters of a `traceparent` of a later version; version 00 has 55.
MAX_CHARS = 128


def traceparent(headers: Headers) -> str | None:
    """Return the request's `traceparent`; None unless exactly one is given and valid."""
    given = headers.getlist("traceparent")
    found = _TRACEPARENT.fullmatch(given[0]) if len(given) == 1 and len(given[0]) <= MAX_CHARS else None
    return None if found is None or (found["version"] == "00" and found["more"]) else found[0]


def joins(request: Request, key: JobKey) -> None:
    """Have the request's span join the trace of the job that the request submits."""
    request.state.traced_job = key


def _span(scope: Scope, given: str | None, status: int, begun_s: float, ended_s: float) -> Span | None:
    """Return the span of a request; None for one that belongs to no trace."""
    job: JobKey | None = scope.get("state", {}).get("traced_job")
    if given is not None:
        parent = Context.parse(given)
    elif job is not None:
        parent = root_of(job, None)
    else:
        return None
    route = getattr(scope.get("route"), "path", None)
    name = scope["method"] if route is None else f"{scope['method']} {route}"
    about: dict[str, str | int | float | bool] = {"http.request.method": scope["method"]}
    about |= {} if route is None else {"http.route": route}
    about |= {"http.response.status_code": status} if status else {}
    about |= {} if job is None else {"penstock.job": job.id, "penstock.tenant": job.tenant}
    error = str(status) if status >= 500 else None
    return Span(
        name, within(parent, "request", uuid.uuid4().hex), parent, begun_s, ended_s, about, error, SpanKind.SERVER
    )


class Tracing:
    """ASGI middleware that adds the trace to a request's log lines and to its response."""

    def __init__(self, app: ASGIApp, spans: Spans | None = None) -> None:
        self._app = app
        self._spans = spans or NoSpans()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given, status, begun_s = traceparent(Headers(scope=scope)), 0, time.time()

        async def send_traced(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if given is not None:
                    MutableHeaders(scope=message)["traceparent"] = given
            await send(message)

        try:
            with structlog.contextvars.bound_contextvars(**trace_of(given)):
                await self._app(scope, receive, send_traced)
        finally:
            span = _span(scope, given, status, begun_s, time.time()) if self._spans.wanted else None
            if span is not None:
                self._spans.send(span)
