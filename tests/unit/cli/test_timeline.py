"""The timeline of a job, from what the API tells."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.cli.timeline import timeline
from penstock.client.answers import Event, Job, WebhookDelivery
from penstock.client.decoding import read

START = datetime(2026, 1, 1, 12, 0, 0, 0, UTC)
JOB = {"id": "1", "model": "m", "status": "running", "created_at": START.isoformat(), "input": {"text": "ä"}}
SENT = {"id": "d", "event": "job.succeeded", "url": "http://h/", "created_at": START.isoformat()}


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def event(seconds: float, kind: str, **data: Any) -> Event:
    return Event(f"{seconds}", kind, at(seconds), data)


def phase(seconds: float, name: str, done: int = 0, **data: Any) -> Event:
    return event(seconds, "job.progress", phase=name, done=done, attempt=1, **data)


def rows(
    events: list[Event], *deliveries: dict[str, Any], **job: Any
) -> list[tuple[str, float | None, dict[str, Any]]]:
    entries = timeline(read(Job, {**JOB, **job}), events, [read(WebhookDelivery, d) for d in deliveries])
    return [(entry.event, entry.after_s, dict(entry.data)) for entry in entries]


CREATED = event(0, "job.created", model="m", queue="default")


def test_the_request_stands_first_with_what_it_asked() -> None:
    [(what, after_s, data)] = rows([CREATED], priority="high", tenant="t", idempotency_key="k", traceparent=None)

    assert (what, after_s) == ("request", 0)
    assert data == {
        "id": "1",
        "model": "m",
        "body_bytes": 13,
        "tenant": "t",
        "priority": "high",
        "idempotency_key": "k",
    }


def test_every_wait_counts_from_when_the_job_was_sent_back() -> None:
    found = rows([
        CREATED, event(2, "job.started", attempt=1, worker="w", fence="7"),
        event(3, "job.retrying", attempt=1, delay_s=4.0, metrics={"fetch_ms": 5.0}, error={"code": "x"}),
        event(7, "job.requeued", reason="due"), event(8, "job.started", attempt=2, worker="v", fence="9"),
    ])  # fmt: skip

    assert [(what, after_s) for what, after_s, _ in found] == [
        ("request", 0), ("attempt 1", 2), ("retrying", 3), ("requeued", 7), ("attempt 2", 8),
    ]  # fmt: skip
    assert found[1][2] == {"waited_s": 2, "worker": "w", "fence": "7"}
    assert found[2][2]["fetch_ms"] == 5.0
    assert found[4][2]["waited_s"] == 1


def test_phases_of_the_record_stand_with_their_own_times_and_the_progress_of_their_heartbeats() -> None:
    def told(name: str, begun: float, ended: float | None) -> dict[str, Any]:
        return {
            "phase": name, "started_at": at(begun).isoformat(), "ended_at": ended and at(ended).isoformat(),
        }  # fmt: skip

    first = {"number": 1, "fence": "7", "worker": "w", "started_at": at(1).isoformat(), "ended_at": at(3).isoformat(),
             "outcome": "lost", "phases": [told("fetching", 1, 3)]}  # fmt: skip
    second = {"number": 2, "fence": "9", "worker": "w", "started_at": at(4).isoformat(), "ended_at": None,
              "outcome": None, "phases": [told("fetching", 4, 4.25), told("inferring", 4.25, None)]}  # fmt: skip
    events = [CREATED, event(6, "job.progress", phase="inferring", done=1, total=4, unit="tiles", attempt=2)]

    found = [row for row in rows(events, attempts=[first, second]) if row[0].startswith("phase")]

    assert found == [
        ("phase fetching", 1, {"took_s": 2}),
        ("phase fetching", 4, {"took_s": 0.25}),
        ("phase inferring", 4.25, {"done": "1/4 tiles"}),
    ]


def test_each_try_of_a_webhook_stands_once_where_it_happened_and_what_is_to_come_last() -> None:
    tries = [{"number": n, "at": at(10 * n).isoformat(), "status": 500, "note": "HTTP 500"} for n in (1, 2)]
    ended = {**SENT, "id": "e", "state": "pending", "log": tries, "next_attempt_at": at(90).isoformat()}
    found = rows(
        [CREATED, event(5, "job.canceled"), event(10, "delivery.pending", number=1), event(15, "delivery.pending")],
        {**SENT, "event": "job.queued", "state": "pending", "log": []}, ended, status="canceled",
    )  # fmt: skip

    assert [(what, after_s) for what, after_s, _ in found] == [
        ("request", 0), ("canceled", 5), ("webhook job.succeeded", 10), ("redelivery asked for", 15),
        ("webhook job.succeeded", 20), ("webhook job.succeeded", 90), ("webhook job.queued", None),
    ]  # fmt: skip
    assert found[2][2] == {"try": 1, "said": "HTTP 500", "url": "http://h/"}
    assert found[5][2]["state"] == found[6][2]["state"] == "pending"


def test_a_job_with_too_many_events_says_that_the_first_are_gone() -> None:
    found = rows([event(9, "job.text", text="x")], started_at=at(1).isoformat(), attempt=2)

    assert [what for what, _, _ in found] == ["request", "gap", "attempt 2"]
    assert "1000" in found[1][2]["what"]


def test_an_event_in_the_millisecond_of_the_request_comes_after_it() -> None:
    found = rows([CREATED, event(0, "job.started", attempt=1)], created_at=at(0.0009).isoformat())

    assert [(what, after_s) for what, after_s, _ in found] == [("request", 0), ("attempt 1", 0)]
