"""A queue's answers become the rule's problem, and no answer makes the keeper ask without a pause."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.config_tables import S3, DropRule
from penstock.errors import EventQueueUnavailable
from penstock.storage.redis.counts import counts
from penstock.storage.redis.drop_events import Pass, note_pass, passes, problem_with
from penstock.storage.sqs import open_queue
from penstock.workers.keeper.drop_watch import DropWatch, QueueReader
from penstock.workers.keeper.drops import open_drops
from tests.support.echo_processor import Bench, open_bench
from tests.support.fake_queue import FakeQueue, fake_queue
from tests.support.valkey import ValkeyProcess


class Reading:
    """A rule whose events come from a server that is no queue."""

    def __init__(self, bench: Bench, fake: FakeQueue) -> None:
        self.bench, self.fake = bench, fake
        self.drops = open_drops(bench.settings, bench.store, bench.objects)
        self.watch = DropWatch(self.drops, bench.store)
        self.reader = QueueReader(open_queue(fake.url, bench.settings), self.watch)

    def problem(self) -> str | None:
        return problem_with(self.bench.store.run(passes()), "inbox", self.fake.url, every_s=60)


@pytest.fixture
def reading(valkey: ValkeyProcess, tmp_path: Path) -> Iterator[Reading]:
    with fake_queue() as fake:
        rule = DropRule(
            name="inbox", bucket="s3://scenes", prefix="in/", suffixes=(".txt",), model="echo",
            field="text", output_prefix="out/", events=fake.url,
        )  # fmt: skip
        s3 = S3(access_key_id="a", secret_access_key="b", region="eu-central-1")
        with open_bench(valkey.url, tmp_path / "data", drops=(rule,), s3=s3) as bench:
            reading = Reading(bench, fake)
            bench.store.run(note_pass("inbox", Pass(0, 0, 0, 0.1)))
            yield reading
            reading.watch.close()


def test_an_address_that_answers_as_no_queue_is_its_rules_problem_until_it_does(reading: Reading) -> None:
    reading.fake.answer(b"<html>\x1b[2J", content_type="text/html")
    with pytest.raises(EventQueueUnavailable):
        reading.reader.step()
    told = reading.problem() or ""
    assert told.startswith("its events cannot be read: the address does not answer as a queue of bucket events")
    assert told.endswith(r"it answered 200 with <html>\x1b[2J")
    reading.bench.store.run(note_pass("inbox", Pass(0, 0, 0, 0.1, problem="there is no bucket")))
    assert reading.problem() == f"there is no bucket; {told}"
    reading.fake.answer(b"{}")
    assert not reading.reader.step()
    assert reading.problem() == "there is no bucket"


def test_more_is_due_only_after_a_deletion(reading: Reading) -> None:
    def answer(*deleted: str) -> None:
        messages = [{"MessageId": "1", "ReceiptHandle": "r", "Body": "no event"}]
        entries = [{"Id": each} for each in deleted]
        reading.fake.answer(json.dumps({"Messages": messages, "Successful": entries}).encode())

    answer("0")
    assert reading.reader.step()
    answer()
    assert not reading.reader.step()


def test_a_body_that_is_no_text_is_an_unreadable_message(reading: Reading) -> None:
    messages = [{"MessageId": "7", "ReceiptHandle": "r", "Body": {"Records": []}}]
    reading.fake.answer(json.dumps({"Messages": messages, "Successful": [{"Id": "0"}]}).encode())
    with capture_logs() as logs:
        assert reading.reader.step()
    [line] = [each for each in logs if each["event"] == "drop.unreadable_message"]
    assert (line["message"], line["why"]) == ("7", "the message's body is not a text")
    assert reading.bench.store.run(counts()).drop_events == {("sqs", "unreadable"): 1}
    assert reading.problem() is None
