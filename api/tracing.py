"""W3C trace context: a valid `traceparent` is added to log lines and to the response; an invalid one is ignored."""

from __future__ import annotations

import re

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.jobs import trace_of

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


class Tracing:
    """ASGI middleware that adds the trace to a request's log lines and to its response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        given = traceparent(Headers(scope=scope)) if scope["type"] == "http" else None
        if given is None:
            await self._app(scope, receive, send)
            return

        async def send_traced(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["traceparent"] = given
            await send(message)

        with structlog.contextvars.bound_contextvars(**trace_of(given)):
            await self._app(scope, receive, send_traced)
