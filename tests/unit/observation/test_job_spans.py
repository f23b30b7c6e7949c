"""The spans of a job, from its record alone."""

from __future__ import annotations

from dataclasses import replace

from penstock.errors import WorkerLost
from penstock.jobs import AttemptTimes, Job, JobKey, Phase, PhaseTimes, State, Submission
from penstock.observation.job_spans import Context, Span, root_of, spans_of, within

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
KEY = JobKey("default", "a")
LOST = AttemptTimes(1, 100, "w1", 11.0, 13.0, "lost", (PhaseTimes(Phase.FETCHING, 11.0, 13.0),))
GOOD = AttemptTimes(
    2, 200, "w2", 15.0, 18.0, "succeeded",
    (PhaseTimes(Phase.FETCHING, 15.0, 16.0), PhaseTimes(Phase.INFERRING, 16.0, 18.0)),
)  # fmt: skip
JOB = Job(
    Submission(KEY, "m", "q", {}, "f", traceparent=f"00-{TRACE}-{CALLER}-01"), State.SUCCEEDED, 10.0, attempt=2,
    completed_s=18.0, attempts=(LOST, GOOD),
)  # fmt: skip


def outline(spans: list[Span]) -> list[tuple[str, str, float, float]]:
    """Return each span with the name of its parent."""
    names = {span.context.span_id: span.name for span in spans}
    return [
        (span.name, names.get(span.parent.span_id, "caller") if span.parent else "", span.started_s, span.ended_s)
        for span in spans
    ]


def test_a_job_is_a_tree_below_its_caller_with_its_waits_attempts_and_phases() -> None:
    spans = list(spans_of(JOB))
    assert outline(spans) == [
        ("job m", "caller", 10, 18),
        ("waiting", "job m", 10, 11), ("attempt 1", "job m", 11, 13), ("fetching", "attempt 1", 11, 13),
        ("waiting", "job m", 13, 15), ("attempt 2", "job m", 15, 18), ("fetching", "attempt 2", 15, 16),
        ("inferring", "attempt 2", 16, 18),
    ]  # fmt: skip
    assert {span.context.trace_id for span in spans} == {TRACE}
    assert spans[0].parent == Context(TRACE, CALLER, sampled=True)
    assert len({span.context.span_id for span in spans}) == len(spans)
    assert [span.attributes["penstock.fence"] for span in spans if "attempt" in span.name] == ["100", "200"]
    assert [span.name for span in spans if span.error] == ["attempt 1"]


def test_the_same_job_has_the_same_ids_and_another_has_others() -> None:
    ids = [span.context for span in spans_of(JOB)]
    assert ids == [span.context for span in spans_of(JOB)]
    alone = replace(JOB, submission=replace(JOB.submission, traceparent=None))
    own = list(spans_of(alone))
    assert own[0].parent is None
    assert own[0].context == root_of(KEY, None)
    assert own[0].context.trace_id != root_of(JobKey("other", "a"), None).trace_id
    assert {span.context.trace_id for span in own} == {own[0].context.trace_id}
    assert (len(own[0].context.trace_id), len(own[0].context.span_id)) == (32, 16)


def test_a_failed_job_has_its_errors_code() -> None:
    failed = replace(
        JOB, state=State.FAILED, error=WorkerLost().report(), attempts=(LOST, replace(LOST, number=2, fence=300))
    )
    assert [(span.name, span.error) for span in spans_of(failed) if span.error] == [
        ("job m", "worker_lost"), ("attempt 1", "lost"), ("attempt 2", "worker_lost"),
    ]  # fmt: skip


def test_a_job_that_never_ran_is_its_root_alone() -> None:
    canceled = replace(JOB, state=State.CANCELED, attempt=0, attempts=())
    assert outline(list(spans_of(canceled))) == [("job m", "caller", 10, 18)]


def test_a_context_is_written_as_a_header() -> None:
    place = within(root_of(KEY, f"00-{TRACE}-{CALLER}-00"), "webhook")
    assert place.traceparent(sampled=bool(place.sampled)) == f"00-{TRACE}-{place.span_id}-00"
    assert Context.parse(place.traceparent(sampled=True)) == replace(place, sampled=True)
