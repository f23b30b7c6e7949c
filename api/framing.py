"""The framing of requests: a connection ends after a request whose length is ambiguous."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


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
