"""A collector of spans by OTLP over HTTP, which can also be slow or refuse."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.web_server import in_thread


@dataclass(frozen=True)
class SentSpan:
    """A received span."""

    name: str
    service: str
    trace_id: str
    span_id: str
    parent_id: str
    begun_ns: int
    ended_ns: int
    failed: bool
    attributes: dict[str, Any]


class OtlpSink:
    """Keeps what it receives, unless `status` is an error or it hangs."""

    def __init__(self) -> None:
        self.spans: list[SentSpan] = []
        self.status = 200
        #: Requests so far.
        self.asked = 0
        #: Cleared, no request is answered.
        self.answers = threading.Event()
        self.answers.set()
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                sink.asked += 1
                sink.answers.wait()
                if sink.status == 200:
                    sink.spans += list(_spans(body))
                self.send_response(sink.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def trace(self, trace_id: str) -> list[SentSpan]:
        """Return the spans of a trace by their time."""
        return sorted((span for span in self.spans if span.trace_id == trace_id), key=lambda span: span.begun_ns)


@contextmanager
def otlp_sink() -> Iterator[OtlpSink]:
    """Run a collector."""
    sink = OtlpSink()
    with in_thread(sink.server):
        try:
            yield sink
        finally:
            sink.answers.set()


def _spans(body: bytes) -> Iterator[SentSpan]:
    request = ExportTraceServiceRequest()
    request.ParseFromString(body)
    for resource in request.resource_spans:
        service = _values(resource.resource.attributes)["service.name"]
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield SentSpan(
                    span.name, service, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(),
                    span.start_time_unix_nano, span.end_time_unix_nano, span.status.code == 2, _values(span.attributes),
                )  # fmt: skip


def _values(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in pairs}
