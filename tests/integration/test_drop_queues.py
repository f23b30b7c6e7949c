"""Events by SQS, on two emulators that differ: what they send becomes one job, and no message is deleted too early."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.config_tables import DropRule
from penstock.errors import EventQueueUnavailable
from penstock.storage.redis import catalogues, listing
from penstock.storage.redis.counts import counts
from penstock.storage.sqs import EventQueue, open_queue
from penstock.workers.keeper.drop_watch import DropWatch, QueueReader
from penstock.workers.keeper.drops import CheckResult, Drop, open_drops
from tests.support.aws_emulators import Emulator, emulating
from tests.support.echo_processor import Bench, open_bench
from tests.support.valkey import ValkeyProcess

NEW = ["s3:ObjectCreated:*"]


@pytest.fixture(scope="module", params=["moto", pytest.param("ministack", marks=pytest.mark.breadth)])
def emulator(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with emulating(request.param, tmp_path_factory.mktemp("emulator")) as emulator:
        yield emulator


class Inbox:
    """A bucket with its rule and its queue, and a keeper's parts for it."""

    def __init__(self, bench: Bench, emulator: Emulator, bucket: str, queue_arn: str) -> None:
        self.bench, self.emulator, self.bucket, self.queue_arn = bench, emulator, bucket, queue_arn
        self.s3 = emulator.client("s3")
        self.drops = open_drops(bench.settings, bench.store, bench.objects)
        self.watch = DropWatch(self.drops, bench.store)
        [url] = self.watch.queue_urls
        self.queue = open_queue(url, bench.settings)
        self.source = QueueReader(self.queue, self.watch)

    @property
    def drop(self) -> Drop:
        return self.drops[0]

    def put(self, key: str, text: str = "hi") -> None:
        self.s3.put_object(Bucket=self.bucket, Key=key, Body=text.encode())

    def notify(self, **configuration: Any) -> None:
        self.s3.put_bucket_notification_configuration(Bucket=self.bucket, NotificationConfiguration=configuration)

    def event(self, key: str, **of_object: Any) -> str:
        found = {"key": key, "size": 2, **of_object}
        record = {"eventSource": "aws:s3", "eventName": "ObjectCreated:Put"}
        return json.dumps({"Records": [{**record, "s3": {"bucket": {"name": self.bucket}, "object": found}}]})

    def receive(self, messages: int) -> None:
        """Take so many messages; what does not come within the long poll does not come."""
        while messages > 0:
            received = self.queue.receive()
            assert received, "no message came"
            self.source.handle(received)
            messages -= len(received)

    def jobs(self) -> dict[str, str]:
        """Object -> its job's status."""
        found = self.bench.store.run(listing.list_jobs("default")).jobs
        named = {j.submission.metadata["source"].rpartition("/in/")[2]: j.status.value for j in found}
        assert len(named) == len(found)
        return named

    def counted(self) -> dict[str, int]:
        found = self.bench.store.run(counts()).drop_events
        return {outcome: n for (source, outcome), n in found.items() if source == "sqs"}


@pytest.fixture
def inbox(valkey: ValkeyProcess, tmp_path: Path, emulator: Emulator) -> Iterator[Inbox]:
    bucket, (url, arn) = emulator.bucket(), emulator.queue(visibility_s=1)
    rule = DropRule(
        name="inbox", bucket=f"s3://{bucket}", prefix="in/", suffixes=(".txt",), model="echo", field="text",
        output_prefix="out/", events=url,
    )  # fmt: skip
    with open_bench(valkey.url, tmp_path, drops=(rule,), s3=emulator.s3) as bench:
        inbox = Inbox(bench, emulator, bucket, arn)
        yield inbox
        inbox.watch.close()


def test_an_object_that_the_bucket_tells_of_becomes_a_job_without_a_listing(inbox: Inbox) -> None:
    inbox.notify(QueueConfigurations=[{"QueueArn": inbox.queue_arn, "Events": NEW}])
    inbox.put("in/a b ä.txt")
    inbox.receive(2)  # the test event comes first
    assert inbox.jobs() == {"a b ä.txt": "queued"}
    assert inbox.emulator.left(inbox.queue.url) == 0
    assert inbox.counted() == {"ignored": 1, "submitted": 1}
    inbox.bench.slots.work("default")
    inbox.watch.check_waiting()
    assert inbox.drop.bucket.get_bytes("out/a b ä.txt/echo.txt", limit_bytes=10) == b"hi"


def test_what_the_bucket_says_twice_of_an_upload_in_parts_is_one_job(inbox: Inbox) -> None:
    inbox.notify(QueueConfigurations=[{"QueueArn": inbox.queue_arn, "Events": NEW}])
    where = {"Bucket": inbox.bucket, "Key": "in/parts.txt"}
    upload = inbox.s3.create_multipart_upload(**where)["UploadId"]
    part = inbox.s3.upload_part(**where, UploadId=upload, PartNumber=1, Body=b"hi")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    inbox.s3.complete_multipart_upload(**where, UploadId=upload, MultipartUpload=parts)
    inbox.receive(3 if inbox.emulator.kind == "moto" else 2)
    assert inbox.jobs() == {"parts.txt": "queued"}


@pytest.mark.breadth(but=("moto-wrapped",))
@pytest.mark.parametrize("raw", ["false", "true"], ids=["wrapped", "raw"])
def test_a_topic_between_bucket_and_queue_changes_nothing(inbox: Inbox, raw: str) -> None:
    sns = inbox.emulator.client("sns")
    topic = sns.create_topic(Name=f"topic-{inbox.bucket}")["TopicArn"]
    options = {"RawMessageDelivery": raw}
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=inbox.queue_arn, Attributes=options)
    inbox.notify(TopicConfigurations=[{"TopicArn": topic, "Events": NEW}])
    inbox.put("in/a b.txt")
    inbox.receive(2)
    assert inbox.jobs() == {"a b.txt": "queued"}


def test_nor_does_event_bridge(inbox: Inbox) -> None:
    events = inbox.emulator.client("events")
    name = f"rule-{inbox.bucket}"
    pattern = {"source": ["aws.s3"], "detail-type": ["Object Created"], "detail": {"bucket": {"name": [inbox.bucket]}}}
    events.put_rule(Name=name, EventPattern=json.dumps(pattern))
    events.put_targets(Rule=name, Targets=[{"Id": "1", "Arn": inbox.queue_arn}])
    inbox.notify(EventBridgeConfiguration={})
    inbox.put("in/a b+c%2Fd.txt")
    inbox.receive(1)
    assert inbox.jobs() == {"a b+c%2Fd.txt": "queued"}


def test_events_that_come_twice_and_late_change_nothing(inbox: Inbox) -> None:
    inbox.put("in/a.txt")
    send = [inbox.event("in/a.txt", sequencer=s) for s in ("0056", "0055", "0056", "00")]
    inbox.emulator.send(inbox.queue.url, *send)
    inbox.receive(4)
    assert inbox.jobs() == {"a.txt": "queued"}
    assert inbox.counted() == {"submitted": 1, "duplicate": 3}


def test_an_overwrite_between_event_and_look_is_the_job_of_what_lies_there(inbox: Inbox) -> None:
    inbox.emulator.send(inbox.queue.url, inbox.event("in/a.txt", eTag="of the first"))
    inbox.put("in/a.txt", "one")
    inbox.put("in/a.txt", "two")
    inbox.receive(1)
    inbox.bench.slots.work("default")
    inbox.watch.check_waiting()
    assert inbox.drop.bucket.get_bytes("out/a.txt/echo.txt", limit_bytes=10) == b"two"
    assert inbox.jobs() == {"a.txt": "succeeded"}


def test_a_message_stays_until_its_job_can_be_made(inbox: Inbox) -> None:
    inbox.put("in/a.txt")
    inbox.emulator.send(inbox.queue.url, inbox.event("in/a.txt"))
    bench, store = inbox.bench, inbox.bench.store
    inbox.drop.rule = inbox.drop.rule.model_copy(update={"model": "later"})
    inbox.receive(1)
    assert inbox.jobs() == {}
    assert inbox.emulator.left(inbox.queue.url) == 1
    later = bench.entry.model_copy(update={"name": "later", "aliases": ()})
    store.run(catalogues.publish([later], worker="w", queues=["default"], alive_s=600))
    inbox.receive(1)  # after its visibility timeout
    assert inbox.jobs() == {"a.txt": "queued"}
    assert inbox.emulator.left(inbox.queue.url) == 0
    assert inbox.counted() == {"postponed": 1, "submitted": 1}


def test_a_keeper_that_dies_before_it_deletes_a_message_makes_no_second_job(inbox: Inbox) -> None:
    inbox.put("in/a.txt")
    inbox.emulator.send(inbox.queue.url, inbox.event("in/a.txt"))

    class Dying(EventQueue):
        def delete(self, messages: object) -> None:  # noqa: ARG002
            raise KeyboardInterrupt

    dying = QueueReader(Dying(inbox.queue._client, inbox.queue.url), inbox.watch)
    with pytest.raises(KeyboardInterrupt):
        dying.handle(inbox.queue.receive())
    assert inbox.emulator.left(inbox.queue.url) == 1
    inbox.receive(1)
    assert inbox.jobs() == {"a.txt": "queued"}
    assert inbox.emulator.left(inbox.queue.url) == 0


def test_poison_is_told_and_deleted_and_disturbs_no_neighbour(inbox: Inbox) -> None:
    inbox.put("in/a.txt")
    poison = ["{", "[]", '{"Type": "SubscriptionConfirmation", "Token": "secret"}', '{"Records": [{}]}']
    inbox.emulator.send(inbox.queue.url, *poison, inbox.event("in/a.txt"))
    with capture_logs() as logs:
        inbox.receive(5)
    assert inbox.jobs() == {"a.txt": "queued"}
    assert inbox.emulator.left(inbox.queue.url) == 0
    assert inbox.counted() == {"unreadable": 4, "submitted": 1}
    told = [entry for entry in logs if entry["log_level"] == "error"]
    assert [entry["event"] for entry in told].count("drop.unreadable_message") == 3
    assert [entry["event"] for entry in told].count("drop.unreadable_records") == 1
    assert all(entry["message"] for entry in told)
    assert "secret" not in str(logs)


@pytest.mark.breadth(but=('moto-{"times": NaN}',))
@pytest.mark.parametrize("sidecar", ['{"times": NaN}', "[" * 5000 + "]" * 5000, '{"when": "\\udfff"}'])
def test_a_sidecar_that_no_reader_takes_ends_its_message(inbox: Inbox, sidecar: str) -> None:
    inbox.put("in/a.txt.json", sidecar)
    inbox.put("in/a.txt")
    inbox.put("in/b.txt")
    inbox.emulator.send(inbox.queue.url, inbox.event("in/a.txt"), inbox.event("in/b.txt"))
    inbox.receive(2)
    marker = json.loads(inbox.drop.bucket.get_bytes("out/a.txt.error.json", limit_bytes=10_000))
    assert marker["error"]["code"] == "invalid_input"
    assert inbox.jobs() == {"b.txt": "queued"}
    assert inbox.emulator.left(inbox.queue.url) == 0


def test_a_fault_at_one_object_keeps_its_message_and_no_neighbours(inbox: Inbox) -> None:
    look = inbox.drop.check

    def faulty(key: str) -> CheckResult:
        if key == "in/a.txt":
            raise ZeroDivisionError
        return look(key)

    inbox.drop.check = faulty  # type: ignore[method-assign]
    inbox.put("in/b.txt")
    inbox.emulator.send(inbox.queue.url, inbox.event("in/a.txt"), inbox.event("in/b.txt"))
    inbox.receive(2)
    assert inbox.jobs() == {"b.txt": "queued"}
    assert inbox.emulator.left(inbox.queue.url) == 1
    assert "an unexpected ZeroDivisionError" in (inbox.drop.errors_by_key.summary() or "")


def test_what_is_not_ours_is_deleted(inbox: Inbox) -> None:
    inbox.put("out/a.txt/echo.txt")
    elsewhere = inbox.event("in/a.txt").replace(inbox.bucket, "somebody-elses")
    others = [inbox.event("in/a.tif"), inbox.event("out/a.txt/echo.txt"), inbox.event("in/gone.txt"), elsewhere]
    inbox.emulator.send(inbox.queue.url, *others)
    inbox.receive(4)
    assert inbox.jobs() == {}
    assert inbox.emulator.left(inbox.queue.url) == 0
    assert inbox.counted() == {"foreign": 3, "missing": 1}


def test_a_queue_says_how_many_messages_wait_or_that_it_is_away(inbox: Inbox) -> None:
    inbox.emulator.send(inbox.queue.url, "{}")
    assert inbox.queue.ping() == 1
    gone = open_queue(f"{inbox.emulator.url}/123456789012/none", inbox.bench.settings)
    for ask in (gone.ping, gone.receive):
        with pytest.raises(EventQueueUnavailable, match="the queue answers"):
            ask()
    away = open_queue("http://127.0.0.1:1/123456789012/none", inbox.bench.settings)
    with pytest.raises(EventQueueUnavailable):
        away.receive()
