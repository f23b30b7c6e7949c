"""The timeline of a job, from its record, its events and its deliveries. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from penstock.client.answers import Event, Job, WebhookDelivery

LOST = "Redis lost the job; it was restored from its manifest, and its earlier events are lost"
DROPPED = "the first events were dropped: a job keeps about 1000"

_SENT_BACK = ("job.requeued", "job.released", "job.retrying")
#: Time, name and data of an entry; the time is None for a future event at an unknown time.
_Row: TypeAlias = tuple[datetime | None, str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A past event, or, without a time, a future one."""

    at: datetime | None
    #: Seconds since the request.
    after_s: float | None
    event: str
    data: Mapping[str, Any] = field(default_factory=dict)


def timeline(job: Job, events: Sequence[Event], deliveries: Sequence[WebhookDelivery]) -> list[Entry]:
    """Return all known events of a job in order; future ones are last."""
    rows = [_request(job), *_gaps(job, events), *_course(job, events), *_phases(job, events)]
    rows += [*_waits(job), *_webhooks(deliveries)]
    # Events have milliseconds and records microseconds: within one millisecond the order above is right.
    rows.sort(key=lambda row: (row[0] is None, _cut(row[0] or job.created_at)))
    return [Entry(at, None if at is None else _between(job.created_at, at), event, data) for at, event, data in rows]


def _request(job: Job) -> _Row:
    named = ("tenant", "queue", "priority", "idempotency_key", "retry_of", "after", "traceparent")
    size = len(json.dumps(job.input, ensure_ascii=False, separators=(",", ":")).encode())
    said = {name: job.raw[name] for name in named if job.raw.get(name) not in (None, [])}
    return job.created_at, "request", {"id": job.id, "model": job.model, "body_bytes": size, **said}


def _gaps(job: Job, events: Sequence[Event]) -> Iterator[_Row]:
    """Yield entries for lost events that the job's record still shows."""
    recovered = _first(events, "job.recovered")
    if recovered is not None:
        yield recovered.at, "recovered", {"what": LOST}
    elif events and _first(events, "job.created") is None:
        yield job.created_at, "gap", {"what": DROPPED}
    if job.started_at is not None and _first(events, "job.started") is None:
        by = {} if recovered is None else {k: v for k, v in recovered.data.items() if k in ("worker", "fence")}
        yield job.started_at, f"attempt {job.attempt}", by


def _course(job: Job, events: Sequence[Event]) -> Iterator[_Row]:
    """Yield waits, attempts, and the end."""
    waits_since = job.created_at
    for event in events:
        data = dict(event.data)
        what = event.type.removeprefix("job.")
        if event.type == "job.started":
            waited = {} if event.at is None else {"waited_s": _between(waits_since, event.at)}
            yield event.at, f"attempt {data.pop('attempt', '')}", {**waited, **data}
        elif event.type in _SENT_BACK:
            waits_since = event.at or waits_since
            yield event.at, what, {**data, **data.pop("metrics", {})}
        elif event.type == "job.split":
            waits_since = event.at or waits_since
            yield event.at, what, data
        elif event.type in ("job.cancel_requested", "job.part_ended"):
            yield event.at, what, data
        elif event.type == "delivery.pending" and not data:
            yield event.at, "redelivery asked for", {}
        elif event.final:
            # For a restored job the record has the time of its end: the event's time is that of the recovery.
            at = event.at if _first(events, "job.recovered") is None else job.completed_at
            yield from _end(job, at, data)


def _end(job: Job, at: datetime | None, data: dict[str, Any]) -> Iterator[_Row]:
    """Yield a job's end and its artifacts, which become visible with it."""
    kept = {name: value for name, value in data.items() if name != "status"}
    yield at, job.status.value, {**kept, **job.metrics}
    for artifact in job.artifacts:
        named = {"name": artifact.name, "size_bytes": artifact.size_bytes, "sha256": artifact.sha256}
        yield at, "artifact visible", named


def _phases(job: Job, events: Sequence[Event]) -> Iterator[_Row]:
    """Yield the phases of each attempt, with the last progress that the job reported in them."""
    reached = {
        (event.data.get("attempt"), event.data.get("phase")): _reached(event)
        for event in events
        if event.type == "job.progress"
    }
    for attempt in job.attempts:
        for each in attempt.phases:
            took = {} if each.ended_at is None else {"took_s": _between(each.started_at, each.ended_at)}
            yield each.started_at, f"phase {each.phase}", {**took, **reached.get((attempt.number, each.phase), {})}


def _reached(event: Event) -> dict[str, Any]:
    total = event.data.get("total")
    return {} if total is None else {"done": f"{event.data.get('done')}/{total} {event.data.get('unit')}"}


def _waits(job: Job) -> Iterator[_Row]:
    """Yield the reason why the time of the next attempt is unknown."""
    if job.model_problem:
        yield None, "next attempt", {"model_problem": job.model_problem}


def _webhooks(deliveries: Sequence[WebhookDelivery]) -> Iterator[_Row]:
    for delivery in deliveries:
        what = f"webhook {delivery.event}"
        for one in delivery.log:
            yield one.at, what, {"try": one.number, "said": one.note, "url": delivery.url}
        if delivery.state == "pending":
            yield delivery.next_attempt_at, what, {"state": "pending", "tries": len(delivery.log), "url": delivery.url}


def _first(events: Sequence[Event], kind: str) -> Event | None:
    return next((event for event in events if event.type == kind), None)


def _between(begun: datetime, ended: datetime) -> float:
    """Return the seconds between two times, 0 or more: the second time may be rounded down to milliseconds."""
    return max(0.0, round((ended - begun) / timedelta(seconds=1), 3))


def _cut(at: datetime) -> datetime:
    return at.replace(microsecond=at.microsecond // 1000 * 1000)
