"""The framing of requests: targets that name the host, and lengths that are ambiguous."""

from __future__ import annotations

import re
from urllib.parse import unquote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_ABSOLUTE = re.compile(rb"https?://(?P<host>[^/]*)(?P<path>.*)", re.IGNORECASE | re.DOTALL)


class AbsoluteTarget:
    """ASGI middleware for `POST http://host/path`, which clients of proxies send.

    The host of the target replaces the `Host` field (RFC 9112, section 3.2.2).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with the path alone."""
        found = None if scope["type"] != "http" or scope["path"][:1] == "/" else _ABSOLUTE.match(scope["raw_path"])
        if found is not None:
            raw_path = found["path"] or b"/"
            fields = [(name, value) for name, value in scope["headers"] if name != b"host"]
            headers = [(b"host", found["host"]), *fields]
            scope = {**scope, "path": unquote(raw_path.decode("ascii")), "raw_path": raw_path, "headers": headers}
        await self._app(scope, receive, send)


class AmbiguousLength:
    """ASGI middleware that closes the connection after a request with `Content-Length` and `Transfer-Encoding`.

    A proxy in front may have read another length, and take the rest for a request of its own (RFC 9112, section 6.1).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        headers = Headers(scope=scope) if scope["type"] == "http" else {}
        if "content-length" not in headers or "transfer-encoding" not in headers:
            await self._app(scope, receive, send)
            return

        async def send_last(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        await self._app(scope, receive, send_last)
