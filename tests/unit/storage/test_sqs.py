"""An answer that SQS does not give is one error of ours, whatever came, and whichever call was made."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.config import Settings
from penstock.config_tables import S3
from penstock.errors import EventQueueUnavailable
from penstock.storage.sqs import EventQueue, Message, open_queue
from tests.support.fake_queue import JSON, FakeQueue, fake_queue

MESSAGE = {"MessageId": "1", "ReceiptHandle": "r", "Body": "{}"}
#: Answers that no call may take.
STRANGE = {
    "html": b"<html>hi</html>",
    "null": b"null",
    "text": b'"x"',
    "number": b"5",
    "list": b"[1]",
    "cut": b'{"Messages": [',
    "deep": b"[" * 100_000,
    "deep object": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "no text": b"\xff\xfe{",
}
COUNTS = ["x", "", "9" * 5000, float("inf"), float("nan"), None, {"a": 1}, [1]]


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeQueue]:
    with fake_queue() as fake:
        yield fake


@pytest.fixture(scope="module")
def queue(fake: FakeQueue) -> EventQueue:
    return open_queue(fake.url, Settings(s3=S3(access_key_id="a", secret_access_key="b", region="eu-central-1")))


def calls(queue: EventQueue) -> list[Callable[[], Any]]:
    return [queue.ping, queue.receive, lambda: queue.delete([Message("1", "r", "{}")])]


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(EventQueueUnavailable) as raised:
        call()
    return raised.value.detail


@pytest.mark.parametrize("name", STRANGE)
def test_an_answer_that_is_no_object_is_refused_by_every_call(fake: FakeQueue, queue: EventQueue, name: str) -> None:
    for content_type in (JSON, "text/html"):
        fake.answer(STRANGE[name], content_type=content_type)
        for call in calls(queue):
            assert "the address does not answer as a queue of bucket events" in refused(call)


def test_the_error_shows_the_beginning_of_what_came(fake: FakeQueue, queue: EventQueue) -> None:
    fake.answer(b"<html>\x1b[2J\x00\xc2\x9b http://a:secret@b " + b"y" * 5000, content_type="text/html")
    for call in calls(queue):
        detail = refused(call)
        assert r"200 with <html>\x1b[2J\x00\x9b http://[redacted]@b yyy" in detail
        assert len(detail) < 300
    fake.answer(b"", status=204, content_type="text/plain")
    assert refused(queue.receive).endswith("it answered 204 with nothing")


@pytest.mark.parametrize("count", COUNTS, ids=lambda count: repr(count)[:8])
def test_a_count_that_is_none_is_refused(fake: FakeQueue, queue: EventQueue, count: object) -> None:
    fake.answer(json.dumps({"Attributes": {"ApproximateNumberOfMessages": count}}).encode())
    refused(queue.ping)


@pytest.mark.parametrize("attributes", [None, [1], {}, "x"], ids=repr)
def test_an_answer_without_the_count_is_refused(fake: FakeQueue, queue: EventQueue, attributes: object) -> None:
    fake.answer(json.dumps({"Attributes": attributes}).encode())
    refused(queue.ping)


@pytest.mark.parametrize(
    "messages",
    ["abc", 5, [None], [{}], [MESSAGE | {"ReceiptHandle": None}]],
    ids=lambda messages: json.dumps(messages)[:30],
)
def test_messages_without_their_fields_are_refused(fake: FakeQueue, queue: EventQueue, messages: object) -> None:
    fake.answer(json.dumps({"Messages": messages}).encode())
    refused(queue.receive)


@pytest.mark.parametrize("entries", [5, [5]], ids=repr)
def test_deletions_without_their_fields_are_refused(fake: FakeQueue, queue: EventQueue, entries: object) -> None:
    fake.answer(json.dumps({"Successful": entries}).encode())
    refused(calls(queue)[-1])


def test_a_body_that_is_no_text_belongs_to_its_message_alone(fake: FakeQueue, queue: EventQueue) -> None:
    bodies = [{"a": 1}, 7, None, "\udfff\0", "{}"]
    rows = [MESSAGE | {"MessageId": str(n), "Body": body} for n, body in enumerate(bodies)]
    fake.answer(json.dumps({"Messages": [*rows, {"MessageId": "none", "ReceiptHandle": "r"}]}).encode())
    received = {message.id: message.body for message in queue.receive()}
    assert received == {"0": None, "1": None, "2": None, "3": "\udfff\0", "4": "{}", "none": None}


@pytest.mark.parametrize("body", [b"{}", b'{"Messages": []}', b'{"Messages": null}', b""], ids=repr)
def test_an_empty_queue_answers_in_these_ways(fake: FakeQueue, queue: EventQueue, body: bytes) -> None:
    fake.answer(body)
    assert queue.receive() == ()


def test_answers_of_sqs_are_read_and_other_fields_ignored(fake: FakeQueue, queue: EventQueue) -> None:
    fake.answer(b'{"Attributes": {"ApproximateNumberOfMessages": "3", "Other": {}}, "Other": [1]}')
    assert queue.ping() == 3
    fake.answer(json.dumps({"Messages": [MESSAGE | {"Other": 5, "MD5OfBody": "6"}]}).encode())
    assert queue.receive() == (Message("1", "r", "{}"),)
    fake.answer(b'{"Successful": [{"Id": "0"}], "Failed": [{"Id": "1", "Code": "c", "SenderFault": true}]}')
    assert queue.delete([Message("1", "r", "{}"), Message("2", "r", "{}")]) == 1
    assert queue.delete([]) == 0


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (400, b'{"__type": "com.amazonaws.sqs#QueueDoesNotExist", "message": {"a": 1}}', "QueueDoesNotExist"),
        (400, b'{"__type": "\\u0000\\u001b[2J' + b"y" * 5000 + b'"}', r"\x00\x1b[2Jyyy"),
        (400, b"<html>", "400"),
        (301, b"", "301"),
    ],
    ids=lambda part: repr(part)[:20],
)
def test_a_refusal_is_told_by_its_code(fake: FakeQueue, queue: EventQueue, status: int, body: bytes, code: str) -> None:
    fake.answer(body, status=status)
    for call in calls(queue):
        detail = refused(call)
        assert detail.startswith(f"the queue answers {code}")
        assert detail.endswith(", called in region eu-central-1")
        assert len(detail) < 300
