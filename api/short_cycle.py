"""The cycle of a short request: the app's answer to one request that has arrived whole, written at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus

import structlog
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Scope

log = structlog.get_logger(__name__)


class ShortCycle:
    """The request and the response of a short request; H11Protocol treats it as a cycle of its own."""

    def __init__(self, scope: Scope, body: bytes, answer: Callable[[Response, bool], None]) -> None:
        """`answer` writes the response, and closes the connection unless it is kept alive. Called once at most: not
        where the client left.
        """
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
        except Exception:
            log.exception("request.crashed", path=self._scope["path"])
        if not self.response_complete:
            self._end(Response("Internal Server Error", HTTPStatus.INTERNAL_SERVER_ERROR, {"connection": "close"}))

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
            response = Response(self._content, self._start["status"])
            named = [(name, value) for name, value in self._start["headers"] if name != b"content-length"]
            response.raw_headers = [*response.raw_headers, *named]
            self._end(response)

    def _end(self, response: Response) -> None:
        self.response_complete = True
        if not self.disconnected:
            self._answer(response, self.keep_alive)
        self.message_event.set()
