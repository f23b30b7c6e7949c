"""Following a job's events over broken connections."""

from __future__ import annotations

import json

import pytest

from penstock.client.answers import Unreachable
from penstock.client.event_stream import EventReader
from penstock.client.retries import Delays

JOB = {"id": "1", "model": "csmask", "status": "succeeded", "created_at": "2026-01-01T00:00:00Z"}


def test_events_go_on_where_they_broke_off() -> None:
    reader = EventReader("1", "", Delays(60, lambda: 1.0))
    assert "Last-Event-ID" not in reader.headers
    reader.read("snapshot", json.dumps({**JOB, "status": "running"}))
    reader.read("job.progress", json.dumps({"id": "5-0", "type": "job.progress", "at": None, "data": {"done": 1}}))

    assert reader.closed() == 0.25
    assert reader.headers["Last-Event-ID"] == "5-0"

    reader.read("job.failed", json.dumps({"id": "6-0", "type": "job.failed", "at": None, "data": {}}))
    assert reader.over


def test_a_stream_that_began_after_the_last_event_ends_with_its_snapshot() -> None:
    reader = EventReader("1", "9-0", Delays(60, lambda: 1.0))
    reader.read("snapshot", json.dumps(JOB))
    assert not reader.over

    assert reader.closed() == 0.0
    assert reader.over


def test_a_stream_that_never_says_anything_is_given_up() -> None:
    reader = EventReader("1", "", Delays(1, lambda: 1.0))

    def follow() -> None:
        for _ in range(10):
            reader.failed(Unreachable("gone"))

    with pytest.raises(Unreachable):
        follow()
