"""A web server for tests that serves files by range, and counts the bytes that it sent."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.web_server import Server, reply

_RANGE = re.compile(rb"(?i)\r\nrange: bytes=(\d+)-(\d+)\r\n")
_MATCH = re.compile(rb'(?i)\r\nif-match: "([^"]*)"\r\n')
_PATH = re.compile(rb"GET (/[^ ?]*)")


@dataclass
class ServedFiles:
    """Answers requests with the files of a folder; give `answer` to a `Server`."""

    folder: Path
    #: The etag of every file; None for a server without etags.
    etag: str | None = '"1"'
    #: True for a server that knows no ranges.
    whole: bool = False
    #: True for a server that ignores `If-Match`.
    careless: bool = False
    #: Bytes of all bodies.
    sent_bytes: int = 0
    paths: list[str] = field(default_factory=list)

    def serve(self) -> Server:
        """Return a server of the files."""
        server = Server(lambda _: b"")
        server._answers = [lambda connection: self.answer(server.requests[-1], connection)]
        return server

    def answer(self, request: bytes, _connection: socket.socket) -> bytes:
        """Return the answer to a request."""
        named = _PATH.match(request)
        assert named is not None
        path = self.folder / named[1].decode().lstrip("/")
        self.paths.append(path.name)
        if not path.is_file():
            return reply(404)
        tags = {} if self.etag is None else {"ETag": self.etag}
        wanted = _MATCH.search(request)
        if wanted and not self.careless and f'"{wanted[1].decode()}"' != self.etag:
            return reply(412)
        part = None if self.whole else _RANGE.search(request)
        size = path.stat().st_size
        with path.open("rb") as file:
            if part is None:
                body = file.read()
                self.sent_bytes += len(body)
                return reply(200, body, **tags)
            start, last = int(part[1]), min(int(part[2]), size - 1)
            if start >= size:
                return reply(416)
            file.seek(start)
            body = file.read(last + 1 - start)
        self.sent_bytes += len(body)
        return reply(206, body, Content_Range=f"bytes {start}-{last}/{size}", **tags)
