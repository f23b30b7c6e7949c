"""The export of spans by OpenTelemetry, if the extra `otel` is installed and the OTEL_* variables name a collector.

Exporting never blocks and never fails: a span goes into a bounded queue, a thread of the SDK sends batches, and a
collector that is away, slow or full costs spans only.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from penstock.config import wants_spans
from penstock.observation.job_spans import Context, Span, SpanKind

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

#: Seconds that the end of a process waits for the last spans to be sent.
CLOSE_S = 2.0

log = structlog.get_logger(__name__)


class Spans(Protocol):
    """Exports spans. Safe to use from many threads; raises nothing."""

    @property
    def wanted(self) -> bool:
        """True where spans are exported."""
        ...

    def sampled(self, root: Context) -> bool:
        """Return True where the spans of a job's trace are kept."""
        ...

    def send(self, span: Span) -> None:
        """Export a span soon, or drop it."""
        ...

    def close(self) -> None:
        """Send what is left, for at most `CLOSE_S`."""
        ...


class NoSpans:
    """Exports nothing."""

    wanted = False

    def sampled(self, root: Context) -> bool:
        """Return the caller's decision."""
        return bool(root.sampled)

    def send(self, span: Span) -> None:
        """Drop the span."""

    def close(self) -> None:
        """Do nothing."""


def open_spans(process: str) -> Spans:
    """Return the exporter of a process (`api`, `keeper`), as the OTEL_* variables of the environment want it."""
    if not wants_spans():
        return NoSpans()
    try:
        return OtelSpans(process)
    except ImportError:
        log.warning("spans.not_exported", reason="OpenTelemetry is not installed: pip install '.[otel]' in a clone")
    except Exception as error:  # a wrong OTEL_* variable: traces are never worth an outage
        log.warning("spans.not_exported", reason=f"{type(error).__name__}: {error}")
    return NoSpans()


class OtelSpans:
    """Exports spans by OTLP over HTTP. The SDK reads its own variables: sampler, queue, endpoint, headers, timeouts."""

    wanted = True

    def __init__(self, process: str) -> None:
        """Start the exporting thread; `ImportError` without the extra."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from penstock import __version__

        resource = Resource.create({"service.version": __version__})
        if str(resource.attributes["service.name"]).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": f"penstock-{process}"}))
        self._ids = _ids()
        self._provider: TracerProvider = TracerProvider(
            resource=resource, id_generator=self._ids, shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("penstock", __version__)

    def sampled(self, root: Context) -> bool:
        """Return the caller's decision, or else that of the sampler, which is the same for the same trace id."""
        if root.sampled is not None:
            return root.sampled
        from opentelemetry.sdk.trace.sampling import Decision

        found = self._provider.sampler.should_sample(None, int(root.trace_id, 16), "job")
        return found.decision is Decision.RECORD_AND_SAMPLE

    def send(self, span: Span) -> None:
        """Export a span soon, or drop it."""
        try:
            self._send(span)
        except Exception:  # traces are never worth a job
            log.warning("span.not_exported", span=span.name, exc_info=True)

    def close(self) -> None:
        """Send what is left, for at most `CLOSE_S`; a collector that hangs is left."""
        ending = threading.Thread(target=self._provider.shutdown, name="spans-end", daemon=True)
        ending.start()
        ending.join(CLOSE_S)

    def _send(self, span: Span) -> None:
        from opentelemetry import trace

        parent = trace.set_span_in_context(trace.INVALID_SPAN)
        if span.parent is not None:
            flags = trace.TraceFlags(trace.TraceFlags.SAMPLED if self.sampled(span.parent) else 0)
            remote = trace.SpanContext(int(span.parent.trace_id, 16), int(span.parent.span_id, 16), True, flags)
            parent = trace.set_span_in_context(trace.NonRecordingSpan(remote), parent)
        kind = {SpanKind.SERVER: trace.SpanKind.SERVER, SpanKind.CLIENT: trace.SpanKind.CLIENT}
        with self._ids.giving(span.context):
            started = self._tracer.start_span(
                span.name, parent, kind.get(span.kind, trace.SpanKind.INTERNAL), span.attributes,
                start_time=_nanoseconds(span.started_s), record_exception=False, set_status_on_exception=False,
            )  # fmt: skip
        if span.error is not None:
            started.set_attribute("error.type", span.error)
            started.set_status(trace.Status(trace.StatusCode.ERROR, span.error))
        started.end(_nanoseconds(max(span.started_s, span.ended_s)))


def _ids() -> Any:
    """Return a generator of ids that gives those of our spans."""
    from opentelemetry.sdk.trace.id_generator import IdGenerator

    class GivenIds(IdGenerator):
        def __init__(self) -> None:
            self._own = threading.local()

        @contextmanager
        def giving(self, context: Context) -> Iterator[None]:
            self._own.context = context
            yield

        def generate_span_id(self) -> int:
            return int(self._own.context.span_id, 16)

        def generate_trace_id(self) -> int:
            return int(self._own.context.trace_id, 16)

    return GivenIds()


def _nanoseconds(seconds: float) -> int:
    """Return a time of the epoch; a float has microseconds."""
    return round(seconds * 1e6) * 1000
