"""The spans of a job, from its record. Pure: the same job gives the same spans with the same ids.

    job                       the root, a child of the caller's span where the request has a `traceparent`
    ├── waiting               before each attempt
    └── attempt               one for each, with its fence
        └── fetching, ...     one for each phase

Ids are hashes of the job's name, so that processes which know nothing of each other join one trace.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from penstock.jobs import AttemptTimes, Job, JobKey, Phase, Status

Attributes: TypeAlias = Mapping[str, str | int | float | bool]


class SpanKind(StrEnum):
    """The side of a span in a call."""

    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class Context:
    """The place of a span: ids in hexadecimal digits, 32 and 16."""

    trace_id: str
    span_id: str
    #: False where the caller decided that its trace is not kept; None where nobody decided.
    sampled: bool | None = None

    @classmethod
    def parse(cls, traceparent: str) -> Context:
        """Return the caller's span of a valid `traceparent`."""
        _, trace_id, span_id, flags = traceparent.split("-")[:4]
        return cls(trace_id, span_id, bool(int(flags, 16) & 1))

    def traceparent(self, *, sampled: bool) -> str:
        """Return the context as a header."""
        return f"00-{self.trace_id}-{self.span_id}-{sampled:02x}"


@dataclass(frozen=True, slots=True)
class Span:
    """A finished span. Times are seconds since the epoch."""

    name: str
    context: Context
    parent: Context | None
    started_s: float
    ended_s: float
    attributes: Attributes = field(default_factory=dict)
    #: The error's code.
    error: str | None = None
    kind: SpanKind = SpanKind.INTERNAL


def root_of(key: JobKey, traceparent: str | None) -> Context:
    """Return the place of a job's root span: in the caller's trace, or in a trace of the job's own."""
    if traceparent is None:
        return Context(_hash(key, "trace", 32), _hash(key, "job", 16))
    caller = Context.parse(traceparent)
    return Context(caller.trace_id, _hash(key, "job", 16), caller.sampled)


def within(parent: Context, *names: str) -> Context:
    """Return the place of a span below another one, by its name there."""
    return Context(parent.trace_id, _digest([parent.trace_id, parent.span_id, *names], 16), parent.sampled)


def spans_of(job: Job) -> Iterator[Span]:
    """Yield the spans of a job that has ended: the root, then for each attempt the wait, itself and its phases."""
    wanted, ended_s = job.submission, job.completed_s or job.created_s
    root = root_of(job.key, wanted.traceparent)
    caller = None if wanted.traceparent is None else Context.parse(wanted.traceparent)
    about = {
        "penstock.job": job.key.id,
        "penstock.tenant": job.key.tenant,
        "penstock.model": wanted.model,
        "penstock.queue": wanted.queue,
        "penstock.status": job.status.value,
        "penstock.attempts": job.attempt,
    }
    error = job.error.code if job.error is not None and job.status is not Status.SUCCEEDED else None
    yield Span(f"job {wanted.model}", root, caller, job.created_s, ended_s, about, error)
    waits_since = job.created_s
    for attempt in job.attempts:
        yield Span(
            Phase.WAITING, within(root, "waiting", str(attempt.fence)), root, waits_since,
            max(waits_since, attempt.started_s),
        )  # fmt: skip
        waits_since = ended_s if attempt.ended_s is None else attempt.ended_s
        yield from _attempt(root, attempt, waits_since, error if attempt is job.attempts[-1] else None)


def _attempt(root: Context, attempt: AttemptTimes, ended_s: float, error: str | None) -> Iterator[Span]:
    here = within(root, "attempt", str(attempt.fence))
    outcome = attempt.outcome or ""
    about: dict[str, str | int | float | bool] = {
        "penstock.attempt": attempt.number,
        "penstock.fence": str(attempt.fence),
        "penstock.worker": attempt.worker,
        "penstock.outcome": outcome,
    }
    failed = error or outcome if outcome in ("failed", "lost", "retrying") else None
    yield Span(f"attempt {attempt.number}", here, root, attempt.started_s, ended_s, about, failed)
    for number, each in enumerate(attempt.phases):
        end_s = ended_s if each.ended_s is None else each.ended_s
        yield Span(each.phase.value, within(here, str(number)), here, each.started_s, end_s)


def _hash(key: JobKey, what: str, digits: int) -> str:
    return _digest([str(key), what], digits)


def _digest(names: list[str], digits: int) -> str:
    """Return an id, which is never zero in practice."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:digits]
