"""Options as fields of requests."""

from __future__ import annotations

from datetime import UTC, datetime

from penstock.client.options import body_of, query_of


def test_options_that_were_not_given_are_left_to_the_service() -> None:
    assert body_of({"priority": None, "metadata": {}}) == {}
    assert body_of({"enabled": False, "models": []}) == {"enabled": False, "models": []}
    options = {
        "webhook": "http://h/x", "metadata": {"a": "b"}, "queue_ttl_s": 5, "execution_timeout_s": 6, "ttl_s": 7,
        "priority": "low", "idempotency_key": "k", "job_id": "1",
    }  # fmt: skip
    assert body_of(options) == {
        "webhook": {"url": "http://h/x"},
        "metadata": {"a": "b"},
        "queue_ttl": 5,
        "execution_timeout": 6,
        "ttl": 7,
        "priority": "low",
    }
    receiver = {"url": "http://h/x", "events": ["job.started"]}
    assert body_of({"webhook": receiver}) == {"webhook": receiver}


def test_filters_are_texts_in_a_query() -> None:
    filters = {"status": None, "limit": 3, "metadata": {"who": "me"}, "created_after": datetime(2026, 1, 1, tzinfo=UTC)}
    assert query_of(filters) == {"limit": "3", "metadata.who": "me", "created_after": "2026-01-01T00:00:00+00:00"}
