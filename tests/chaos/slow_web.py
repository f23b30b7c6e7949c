"""Web servers that mean harm to whoever fetches from them: they drip, stall, and redirect in a circle."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

#: Bytes of a file, and the seconds between two of them while the server drips.
FILE_BYTES, DRIP_S = 100_000, 0.5


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class SlowWeb:
    """Answers `/drip/...`, `/stall/...` and `/circle/...` on a port of its own; a context manager.

    After `heal`, files that dripped or stalled come at once.
    """

    def __init__(self) -> None:
        self._healed = threading.Event()
        self._lock = threading.Lock()
        #: Requests that are answered at the moment, and the most at a time.
        self.open = self.most_open = 0
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with web._counted(), suppress(OSError):
                    if self.path.startswith("/circle/"):
                        self._redirect()
                    else:
                        self._send(drips=self.path.startswith("/drip/"))

            def _redirect(self) -> None:
                self.send_response(302)
                self.send_header("location", "/circle/b" if self.path.endswith("a") else "/circle/a")
                self.send_header("content-length", "0")
                self.end_headers()

            def _send(self, *, drips: bool) -> None:
                if not drips:
                    web._healed.wait()
                self.send_response(200)
                self.send_header("content-length", str(FILE_BYTES))
                self.end_headers()
                left = FILE_BYTES
                while not web._healed.wait(DRIP_S):
                    self.wfile.write(b"x")
                    left -= 1
                self.wfile.write(b"x" * left)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = _Server(("127.0.0.1", 0), Handler)
        #: Host and port.
        self.pair = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="slow-web")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.heal()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def url(self, kind: str, number: int) -> str:
        """Return the address of a file."""
        return f"http://{self.pair}/{kind}/{number}"

    def heal(self) -> None:
        """Send every file at once from now on."""
        self._healed.set()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._lock:
            self.open += 1
            self.most_open = max(self.most_open, self.open)
        try:
            yield
        finally:
            with self._lock:
                self.open -= 1
