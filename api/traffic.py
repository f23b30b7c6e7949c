"""Request metrics: counts and times requests by route, for `/metrics`.

`penstock up --api N` gives its API processes a folder in the variable `PROMETHEUS_MULTIPROC_DIR`: each of them then
reports the sums of all processes. Without the variable, a process reports its own counts.
"""

from __future__ import annotations

import os
import time

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Variable with the folder of the request metrics of several processes; prometheus-client reads it at its import.
SHARED = "PROMETHEUS_MULTIPROC_DIR"
#: Label of unknown routes and methods: request data must not become labels.
OTHER = "other"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
BOUNDS_S = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class Traffic:
    """The request metrics of this process, or of all API processes that share a folder."""

    def __init__(self) -> None:
        own = CollectorRegistry()
        #: Registry of `/metrics`.
        self.registry = own
        if SHARED in os.environ:
            self.registry = CollectorRegistry()
            MultiProcessCollector(self.registry)  # type: ignore[no-untyped-call]
        self._answered = Counter(
            "penstock_http_requests", "Answered requests.", ["method", "route", "status"],
            registry=own,
        )  # fmt: skip
        self._seconds = Histogram(
            "penstock_http_request_seconds", "Time until the response headers.", ["method", "route"],
            registry=own, buckets=BOUNDS_S,
        )  # fmt: skip

    def record(self, scope: Scope, status: int, took_s: float) -> None:
        """Count a request under its route template, never under its path."""
        method = scope["method"] if scope["method"] in METHODS else OTHER
        route = getattr(scope.get("route"), "path", OTHER)
        self._answered.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(took_s)


class TrafficMiddleware:
    """ASGI middleware that records each request when its response begins, because streams and downloads may be long."""

    def __init__(self, app: ASGIApp, traffic: Traffic) -> None:
        self._app = app
        self._traffic = traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun_s, begun = time.monotonic(), False

        async def send_recorded(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                self._traffic.record(scope, message["status"], time.monotonic() - begun_s)
            await send(message)

        try:
            await self._app(scope, receive, send_recorded)
        except Exception:
            if not begun:  # the outer middleware answers 500
                self._traffic.record(scope, 500, time.monotonic() - begun_s)
            raise
