"""A server at the address of an SQS queue that gives the same answer to every request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.web_server import in_thread

JSON = "application/x-amz-json-1.0"


class FakeQueue:
    """The server; a test may change its answer between two requests."""

    def __init__(self) -> None:
        self.status = 200
        self.body = b"{}"
        self.content_type = JSON
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                self.send_response(fake.status)
                self.send_header("content-type", fake.content_type)
                self.send_header("content-length", str(len(fake.body)))
                self.end_headers()
                self.wfile.write(fake.body)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/1/q"

    def answer(self, body: bytes, *, status: int = 200, content_type: str = JSON) -> None:
        """Give this answer from now on."""
        self.status, self.body, self.content_type = status, body, content_type


@contextmanager
def fake_queue() -> Iterator[FakeQueue]:
    """Run a server until the end of the block."""
    fake = FakeQueue()
    with in_thread(fake.server):
        yield fake
