"""Web servers for tests: one that says exactly what it is told, byte by byte, and a thread for those of the library."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import ThreadingHTTPServer
from types import TracebackType
from typing import Self

#: Gets the connection after the request was read; what it returns is sent. It may also send by itself.
Handler = Callable[[socket.socket], bytes | None]


@contextmanager
def in_thread(server: ThreadingHTTPServer) -> Iterator[None]:
    """Serve in a thread of its own until the end of the block, and close the server."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def reply(status: int, body: bytes = b"", **headers: str) -> bytes:
    """Return a plain answer; `Content_Type="a/b"` becomes the header `Content-Type`."""
    lines = [f"HTTP/1.1 {status} Said"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if "Content_Length" not in headers:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


class Server:
    """Answers each request in turn with the next handler or bytes; the last one goes on for ever."""

    def __init__(self, *answers: Handler | bytes, host: str = "127.0.0.1", port: int = 0) -> None:
        self._answers = list(answers)
        self._listener = socket.create_server((host, port))
        self.port = int(self._listener.getsockname()[1])
        #: Number of connections.
        self.accepted = 0
        #: Requests, head and body as far as they had come.
        self.requests: list[bytes] = []
        self.tls: ssl.SSLContext | None = None
        #: The action on a connection before anything is read.
        self.before: Callable[[], None] = lambda: None
        #: Set when the test is over: handlers that wait, wait for this.
        self.over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        assert not self._thread.is_alive()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            with suppress(OSError):
                self._answer(connection)
            connection.close()

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(10)
        self.before()
        if self.tls is not None:
            connection = self.tls.wrap_socket(connection, server_side=True)
        with connection:
            request = b""
            while b"\r\n\r\n" not in request and (data := connection.recv(65536)):
                request += data
            self.requests.append(request)
            answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
            said = answer if isinstance(answer, bytes) else answer(connection)
            if said:
                connection.sendall(said)
