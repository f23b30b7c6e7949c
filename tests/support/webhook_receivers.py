"""Webhook endpoints and their receivers, for tests: real servers that answer as they are told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any

from penstock.storage.journal import endpoint_changes
from penstock.storage.journal.endpoints import Endpoint, EndpointKey
from penstock.storage.journal.journal import Journal
from penstock.storage.redis import deliveries
from penstock.storage.redis.records import JobStore
from tests.support.web_server import in_thread

ENDPOINT = EndpointKey("default", "01999999-0000-7000-8000-000000000001")


def a_key(n: int) -> EndpointKey:
    return EndpointKey("default", f"01999999-0000-7000-8000-{n:012}")


def an_endpoint(desk: Journal, url: str = "http://h/", key: EndpointKey = ENDPOINT, **fields: Any) -> Endpoint:
    """Make an endpoint and return it."""
    endpoint, _ = desk.run(endpoint_changes.create(Endpoint(key, url, (), 0, 0, **fields)))
    return endpoint


def due(store: JobStore, n: int = 100) -> list[deliveries.DeliveryRecord]:
    """Lease what is due."""
    return [task.delivery for task in store.run(deliveries.due(n, 60)).tasks]


class Receiver:
    """Answers each request with the next status, the last one for ever, and keeps what it got.

    While `opened` is not set it holds its answers back.
    """

    def __init__(self, *statuses: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.got: Queue[tuple[dict[str, str], bytes]] = Queue()
        #: Number of requests, answered or not.
        self.came = 0
        self.holding: Queue[None] = Queue()
        self.opened = threading.Event()
        self.opened.set()
        left = list(statuses) or [200]
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["content-length"])
                sent = self.rfile.read(length)
                if len(sent) < length:  # its sender was killed
                    return
                receiver.came += 1
                receiver.got.put(({k.lower(): v for k, v in self.headers.items()}, sent))
                receiver.holding.put(None)
                receiver.opened.wait(60)
                self.send_response(left.pop(0) if len(left) > 1 else left[0])
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_: Any) -> None:
                """A sender that gave up is what some tests are about."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.pair = f"127.0.0.1:{self.server.server_address[1]}"
        self.url = f"http://{self.pair}/hook"


@contextmanager
def receiving(*statuses: int, **options: Any) -> Iterator[Receiver]:
    """Run a receiver."""
    receiver = Receiver(*statuses, **options)
    with in_thread(receiver.server):
        try:
            yield receiver
        finally:
            receiver.opened.set()
