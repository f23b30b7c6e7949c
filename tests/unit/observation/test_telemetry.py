"""The export of spans: off unless it is configured, never blocking, and never an error."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from penstock.config import wants_spans
from penstock.jobs import JobKey
from penstock.observation.job_spans import Span, root_of, within
from penstock.observation.telemetry import CLOSE_S, NoSpans, OtelSpans, open_spans
from tests.support.otlp_sink import OtlpSink, otlp_sink
from tests.support.polling import wait_for

ROOT = root_of(JobKey("default", "a"), None)


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpSink]:
    with otlp_sink() as sink:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        yield sink


def span(number: int = 0) -> Span:
    return Span(f"span {number}", within(ROOT, str(number)), ROOT, 1.0, 2.0, {"penstock.n": number})


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "x"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://h/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://h"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://h"}, False),
    ],
)
def test_spans_are_exported_where_the_standard_variables_ask_for_it(
    variables: dict[str, str], wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert wants_spans() is wanted
    spans = open_spans("api")
    assert spans.wanted is wanted
    spans.close()


def test_a_span_arrives_with_its_ids_times_and_attributes(sink: OtlpSink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    spans = open_spans("keeper")
    spans.send(Span("job m", ROOT, None, 1_700_000_000.123456, 1_700_000_001.5, {"penstock.fence": "7"}, "code"))
    spans.close()
    [sent] = sink.spans
    assert (sent.name, sent.service, sent.parent_id, sent.failed) == ("job m", "mine", "", True)
    assert (sent.trace_id, sent.span_id) == (ROOT.trace_id, ROOT.span_id)
    assert (sent.begun_ns, sent.ended_ns) == (1_700_000_000_123_456_000, 1_700_000_001_500_000_000)
    assert sent.attributes == {"penstock.fence": "7", "error.type": "code"}


def test_the_sampler_decides_the_same_for_all_spans_of_a_job(sink: OtlpSink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    spans = open_spans("keeper")
    roots = [root_of(JobKey("default", str(number)), None) for number in range(100)]
    for root in roots:
        spans.send(Span("job", root, None, 1.0, 2.0))
        spans.send(Span("attempt", within(root, "a"), root, 1.0, 2.0))
    kept = {root.trace_id for root in roots if spans.sampled(root)}
    spans.close()
    assert 20 < len(kept) < 80
    assert {sent.trace_id for sent in sink.spans if sent.name == "job"} == kept
    assert {sent.trace_id for sent in sink.spans if sent.name == "attempt"} == kept


@pytest.mark.breadth
@pytest.mark.alone
def test_a_flood_for_a_collector_that_hangs_is_dropped_at_once_and_the_end_waits_briefly(sink: OtlpSink) -> None:
    sink.answers.clear()
    spans = open_spans("keeper")
    assert isinstance(spans, OtelSpans)
    begun = time.monotonic()
    for number in range(5_000):
        spans.send(span(number))
    assert time.monotonic() - begun < 5  # 50 us each, not the collector's time-out
    wait_for(lambda: sink.asked, "the collector was not asked")
    begun = time.monotonic()
    spans.close()
    assert time.monotonic() - begun < CLOSE_S + 1


def test_a_span_that_cannot_be_exported_raises_nothing(sink: OtlpSink) -> None:
    spans = open_spans("keeper")
    with capture_logs() as logged:
        spans.send(Span("broken", within(ROOT, "x"), ROOT, float("nan"), 1.0))
        spans.send(span())
    spans.close()
    assert [entry["event"] for entry in logged] == ["span.not_exported"]
    assert [sent.name for sent in sink.spans] == ["span 0"]


def test_a_wrong_variable_costs_the_spans_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-5")
    with capture_logs() as logged:
        spans = open_spans("api")
    assert isinstance(spans, NoSpans)
    assert logged[-1]["event"] == "spans.not_exported"


def test_without_the_extra_everything_is_imported_and_the_log_names_it() -> None:
    program = (
        "import sys, os\n"
        "sys.modules['opentelemetry.sdk'] = sys.modules['opentelemetry.exporter'] = None\n"
        "os.environ['OTEL_EXPORTER_OTLP_ENDPOINT'] = 'http://127.0.0.1:9'\n"
        "import penstock.api.app, penstock.workers.keeper.keeper\n"
        "from penstock.observation.telemetry import NoSpans, open_spans\n"
        "assert isinstance(open_spans('api'), NoSpans)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert "pip install '.[otel]'" in ran.stdout + ran.stderr
