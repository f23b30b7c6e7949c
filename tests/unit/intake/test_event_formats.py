"""The forms of an event's body."""

from __future__ import annotations

import json

import pytest

from penstock.intake.event_formats import CONTENT_TYPES, in_format

BODY = '{"type":"job.failed","timestamp":"2026-11-29T00:00:00Z","data":{"object":"job","id":"a","error":null}}'


@pytest.mark.parametrize("name", ["webhook", "of a newer release"])
def test_other_forms_than_known_ones_are_that_of_webhooks(name: str) -> None:
    assert in_format(name, BODY, "msg", "http://api") == BODY


def test_a_cloud_event_has_the_attributes_of_the_specification() -> None:
    assert json.loads(in_format("cloudevents", BODY, "msg", "http://api")) == {
        "specversion": "1.0",
        "id": "msg",
        "source": "http://api",
        "type": "penstock.job.failed",
        "subject": "job/a",
        "time": "2026-11-29T00:00:00Z",
        "datacontenttype": "application/json",
        "data": {"object": "job", "id": "a", "error": None},
    }
    assert CONTENT_TYPES["cloudevents"].startswith("application/cloudevents+json")
