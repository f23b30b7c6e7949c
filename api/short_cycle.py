"""The cycle of a short request: the app's answer to one request that has arrived whole, written at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import TypeAlias

from starlette.types import ASGIApp, Message, Scope

log = logging.getLogger("uvicorn.error")

#: Field of a response after which the connection closes.
CLOSING = (b"connection", b"close")
#: Writes a response: its status, fields and content.
Answer: TypeAlias = Callable[[int, list[tuple[bytes, bytes]], bytes], None]


class ShortCycle:
    """The request and the response of a short request; H11Protocol treats it as a cycle of its own."""

    def __init__(self, scope: Scope, body: bytes, answer: Answer) -> None:
        """`answer` is called once, or never where the client left; after `CLOSING` it closes the connection."""
        self._scope = scope
        self._body: bytes | None = body
        self._answer = answer
        self._start: Message | None = None
        self._content = b""
        self.response_complete = False
        self.disconnected = False
        self.keep_alive = True
        self.message_event = asyncio.Event()

    async def run(self, app: ASGIApp) -> None:
        """Have the app answer the request."""
        try:
            await app(self._scope, self._receive, self._send)
        except BaseException:  # as uvicorn does: a stop cancels the request, and its client gets a response
            log.exception("Exception in ASGI application")
        if not self.response_complete:
            self.keep_alive = False
            self._end(HTTPStatus.INTERNAL_SERVER_ERROR, [(b"content-type", b"text/plain")], b"Internal Server Error")

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        while not (self.disconnected or self.response_complete):
            self.message_event.clear()
            await self.message_event.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        self._content += message.get("body", b"")
        if self._start is not None and not message.get("more_body", False) and not self.response_complete:
            self._end(self._start["status"], list(self._start["headers"]), self._content)

    def _end(self, status: int, headers: list[tuple[bytes, bytes]], content: bytes) -> None:
        self.response_complete = True
        if not self.keep_alive:
            headers = [*(field for field in headers if field[0] != b"connection"), CLOSING]
        if not any(name == b"content-length" for name, _ in headers):
            headers.append((b"content-length", b"%d" % len(content)))
        if not self.disconnected:
            self._answer(status, headers, content)
        self.message_event.set()
