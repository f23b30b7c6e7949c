"""A server that answers as the Hugging Face hub does, for one repository of files in memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from tests.support.web_server import in_thread

COMMIT = "d" * 40


class _Hub(ThreadingHTTPServer):
    def __init__(self, repository: str, files: Mapping[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.repository, self.files = repository, files


class _Request(BaseHTTPRequestHandler):
    server: _Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        about, files = f"/api/models/{self.server.repository}", self.server.files
        headers = {}
        if self.path.startswith(f"{about}/tree/"):
            tree = [
                {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for path, data in files.items()
            ]
            body = json.dumps(tree).encode()
        elif self.path.startswith(about):
            body = json.dumps({"id": self.server.repository, "sha": COMMIT, "siblings": []}).encode()
        elif (name := unquote(self.path.partition("/resolve/")[2].partition("/")[2])) in files:
            body = files[name]
            headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha1(body).hexdigest()}"'}
        else:
            self.send_error(404)
            return
        self.send_response(200)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *words: Any) -> None:
        """Say nothing."""


@contextmanager
def a_hub(repository: str, files: Mapping[str, bytes]) -> Iterator[str]:
    """Serve a hub with one repository; yield its address. Each revision is the commit `COMMIT`."""
    server = _Hub(repository, files)
    with in_thread(server):
        yield f"http://127.0.0.1:{server.server_port}"
