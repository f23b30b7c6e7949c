"""A result's text is told to the job's followers while it is being made, in order, and by the attempt that holds it."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.errors import RedisUnavailable
from penstock.jobs import Claim, JobKey, Submission
from penstock.storage.redis import records, streaming
from penstock.storage.redis.records import Command, JobStore, QueueLimits
from penstock.storage.redis.scripts import T
from penstock.workers.artifacts import MAX_PREVIEW_BYTES, Preview
from penstock.workers.attempts import MAX_PREVIEWS_BYTES, PART_CHARS, Attempt
from penstock.workers.heartbeat import Heartbeat
from tests.support.claims import claim_one
from tests.support.valkey import ValkeyProcess

LIMITS = QueueLimits(max_queued=100, max_tenant_jobs=50, retention_s=3600, max_crashes=3)
KEY = JobKey("default", "a")


@pytest.fixture
def store(valkey: ValkeyProcess) -> Iterator[JobStore]:
    store = JobStore.open(valkey.url)
    submission = Submission(KEY, "m", "q", {}, "f")
    store.run(records.submit(submission, LIMITS))
    yield store
    store.close()


def claim(store: JobStore) -> Claim:
    return claim_one(store)


def told(store: JobStore) -> list[tuple[int, int, str]]:
    """Return the texts that followers got: attempt, place, token."""
    events = store.run(records.events(KEY))
    return [(e.data["attempt"], e.data["at"], e.data["text"]) for e in events if e.type == "job.text"]


def shown(store: JobStore) -> list[tuple[int, str, str, bytes]]:
    """Return the images that followers got: attempt, artifact, media type, image."""
    events = store.run(records.events(KEY))
    return [
        (e.data["attempt"], e.data["name"], e.data["content_type"], base64.b64decode(e.data["data"]))
        for e in events
        if e.type == "job.preview"
    ]


@contextmanager
def beating(store: records.Runs) -> Iterator[Heartbeat]:
    heartbeat = Heartbeat(store)
    yield heartbeat
    heartbeat.close()


def test_a_piece_is_told_with_its_place_once(store: JobStore) -> None:
    held = claim(store)
    for at, piece in ((0, "Hello "), (0, "Hello "), (6, "wörld"), (6, "wörld")):  # replies that were lost
        assert store.run(streaming.stream_text(held, piece, at=at))
    assert told(store) == [(1, 0, "Hello "), (1, 6, "wörld")]


def test_an_attempt_that_lost_its_job_tells_nothing_and_the_next_begins_anew(store: JobStore) -> None:
    old = claim(store)
    store.run(streaming.stream_text(old, "Hello", at=0))
    store.client.zadd("penstock:leases", {str(KEY): 0})
    store.run(records.sweep())
    assert not store.run(streaming.stream_text(old, " again", at=5))
    new = claim(store)
    assert not store.run(streaming.stream_text(old, " again", at=5))
    assert store.run(streaming.stream_text(new, "Howdy", at=0))
    assert told(store) == [(1, 0, "Hello"), (2, 0, "Howdy")]


def test_many_small_pieces_are_told_as_few(store: JobStore) -> None:
    with beating(store) as heartbeat:
        attempt = Attempt(claim(store), on_news=heartbeat.hasten)
        with heartbeat.watching(attempt):
            for number in range(1000):
                attempt.say(f"{number} ")
            heartbeat.send_news(attempt)
    pieces = told(store)
    assert "".join(piece for _, _, piece in pieces) == "".join(f"{number} " for number in range(1000))
    assert [at for _, at, _ in pieces] == [sum(len(p) for _, _, p in pieces[:n]) for n in range(len(pieces))]
    assert len(pieces) <= 3


def test_the_heartbeat_tells_without_being_asked(store: JobStore) -> None:
    with beating(store) as heartbeat:
        attempt = Attempt(claim(store), on_news=heartbeat.hasten)
        with heartbeat.watching(attempt):
            attempt.say("soon")
            ends = time.monotonic() + 30
            while not told(store):
                assert time.monotonic() < ends, "nobody was told"
    assert told(store) == [(1, 0, "soon")]


def test_a_long_piece_is_told_in_parts(store: JobStore) -> None:
    text = "ab" * PART_CHARS
    with beating(store) as heartbeat:
        attempt = Attempt(claim(store))
        attempt.say(text)
        heartbeat.send_news(attempt)
    assert [at for _, at, _ in told(store)] == [0, PART_CHARS]
    assert "".join(piece for _, _, piece in told(store)) == text


class Away:
    """A job store that does not answer until it is told to."""

    def __init__(self, store: JobStore) -> None:
        self.store = store
        self.answers = False

    def run(self, command: Command[T]) -> T:
        if not self.answers:
            raise RedisUnavailable
        return self.store.run(command)


def test_what_redis_did_not_take_is_told_when_it_is_back(store: JobStore) -> None:
    held, away = claim(store), Away(store)
    with beating(away) as heartbeat:
        attempt = Attempt(held)
        attempt.say("first ")
        heartbeat.send_news(attempt)
        assert told(store) == []
        away.answers = True
        attempt.say("second")
        heartbeat.send_news(attempt)
    assert told(store) == [(1, 0, "first second")]


def test_of_pictures_that_come_quickly_the_latest_is_shown_by_the_attempt_that_holds_the_job(store: JobStore) -> None:
    with beating(store) as heartbeat:
        attempt = Attempt(claim(store))  # tells nobody that there is news: the test does
        for picture in (b"one", b"two"):
            attempt.show(Preview("a.png", "image/webp", picture))
        heartbeat.send_news(attempt)
        heartbeat.send_news(attempt)
        assert shown(store) == [(1, "a.png", "image/webp", b"two")]
        store.client.zadd("penstock:leases", {str(KEY): 0})
        store.run(records.sweep())
        attempt.show(Preview("a.png", "image/webp", b"late"))
        heartbeat.send_news(attempt)
        again = Attempt(claim(store))
        again.show(Preview("a.png", "image/webp", b"three"))
        heartbeat.send_news(again)
    assert shown(store) == [(1, "a.png", "image/webp", b"two"), (2, "a.png", "image/webp", b"three")]


def test_what_is_shown_of_an_attempt_is_bounded(store: JobStore) -> None:
    with beating(store) as heartbeat:
        attempt = Attempt(claim(store))
        for _ in range(MAX_PREVIEWS_BYTES // MAX_PREVIEW_BYTES + 5):
            attempt.show(Preview("a.png", "image/webp", bytes(MAX_PREVIEW_BYTES)))
            heartbeat.send_news(attempt)
    assert len(shown(store)) == MAX_PREVIEWS_BYTES // MAX_PREVIEW_BYTES
