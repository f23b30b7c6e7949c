"""Framing of requests: absolute targets, ambiguous lengths, and the unread bodies of rejected requests."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from urllib.parse import unquote

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Most seconds for which the unread rest of a body is read before the response ends.
LINGER_S = 5.0
_ABSOLUTE = re.compile(rb"https?://(?P<host>[^/]*)(?P<path>.*)", re.IGNORECASE | re.DOTALL)


class Framing:
    """ASGI middleware around the whole app, also its responses to crashes: resolves targets, discards unread bodies.

    `POST http://host/path`, which clients of proxies send, becomes `POST /path`; the host of the target replaces the
    `Host` field (RFC 9112, section 3.2.2).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = _with_path(scope)
        names = {name for name, _ in scope["headers"]}
        has_length, is_chunked = b"content-length" in names, b"transfer-encoding" in names
        if has_length or is_chunked:
            body = _Body(receive, send, is_ambiguous=has_length and is_chunked)
            receive, send = body.receive, body.send
        await self._app(scope, receive, send)


class _Body:
    """The body of one request. Its unread rest is discarded before the response ends.

    A kernel that closes a socket with unread data resets the connection, and the client may never see the response
    that was written before: a 413 to a large upload (RFC 9112, section 9.6).
    """

    def __init__(self, receive: Receive, send: Send, *, is_ambiguous: bool) -> None:
        """`is_ambiguous`: the request has both `Content-Length` and `Transfer-Encoding`, so its connection closes.

        A proxy in front may use the other length and take the rest for another request (RFC 9112, section 6.1).
        """
        self._receive = receive
        self._send = send
        self._is_ambiguous = is_ambiguous
        self._is_complete = False

    async def receive(self) -> Message:
        """Return the next part of the body."""
        message = await self._receive()
        self._is_complete = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the response; before its end, discard the rest of the body for `LINGER_S` at most."""
        if message["type"] == "http.response.start" and self._is_ambiguous:
            MutableHeaders(scope=message)["connection"] = "close"
        is_end = message["type"] == "http.response.body" and not message.get("more_body", False)
        if not is_end or self._is_complete:
            await self._send(message)
            return
        await self._send({**message, "more_body": True})
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while not self._is_complete:
                    await self.receive()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


def _with_path(scope: Scope) -> Scope:
    """Return the scope of a request whose target is a path."""
    found = None if scope["path"][:1] == "/" else _ABSOLUTE.match(scope["raw_path"])
    if found is None:
        return scope
    raw_path = found["path"] or b"/"
    headers = [(b"host", found["host"]), *(field for field in scope["headers"] if field[0] != b"host")]
    return {**scope, "path": unquote(raw_path.decode("ascii")), "raw_path": raw_path, "headers": headers}
