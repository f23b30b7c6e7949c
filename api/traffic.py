"""Requests, counted and timed by route: what `/metrics` says of this process."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: What is neither one of our routes nor a known method: strangers' words must not become labels.
OTHER = "other"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
BOUNDS_S = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class Traffic:
    """The requests that this process answered."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._answered = Counter(
            "penstock_http_requests", "Requests that were answered.", ["method", "route", "status"],
            registry=self.registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "penstock_http_request_seconds", "Time until the head of the answer.", ["method", "route"],
            registry=self.registry, buckets=BOUNDS_S,
        )  # fmt: skip

    def note(self, scope: Scope, status: int, took_s: float) -> None:
        """Count a request by the template of its route, never by its path."""
        method = scope["method"] if scope["method"] in METHODS else OTHER
        route = getattr(scope.get("route"), "path", OTHER)
        self._answered.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(took_s)


class Counting:
    """ASGI middleware that notes each request when its answer begins: streams and downloads last as they please."""

    def __init__(self, app: ASGIApp, traffic: Traffic) -> None:
        self._app = app
        self._traffic = traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, answered = time.monotonic(), False

        async def counted(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                self._traffic.note(scope, message["status"], time.monotonic() - begun)
            await send(message)

        try:
            await self._app(scope, receive, counted)
        except Exception:
            if not answered:  # the one around this answers 500
                self._traffic.note(scope, 500, time.monotonic() - begun)
            raise
