"""A webhook receiver that records everything it is sent, is never killed, and answers as it is told."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from tests.chaos.history import Received


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class Receiver:
    """Listens on a port of its own; a context manager."""

    def __init__(self) -> None:
        #: Requests, in their order.
        self.got: list[Received] = []
        #: The answer to every request, and the seconds before it.
        self.status = 200
        self.delay_s = 0.0
        self.location: str | None = None
        self._ended = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.got.append(Received(self.headers["webhook-id"], body, receiver.status, self.path))
                receiver._ended.wait(receiver.delay_s)
                self.send_response(receiver.status)
                if receiver.location is not None:
                    self.send_header("location", receiver.location)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.pair = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"http://{self.pair}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever, name="receiver")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
