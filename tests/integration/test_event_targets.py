"""Events to SNS topics and SQS queues, and as CloudEvents: the same outbox, tries and redelivery as for URLs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.config import Settings
from penstock.config_tables import EventTarget
from penstock.errors import Unreached
from penstock.intake.guard import GuardedClient
from penstock.jobs import JobKey, State
from penstock.storage.event_targets import EventSenders, OutgoingEvent
from penstock.storage.redis import deliveries
from penstock.storage.redis.records import JobStore, Outcome
from penstock.webhooks import verify
from penstock.workers.keeper.webhooks import Deliverer
from tests.support.aws_emulators import Emulator, emulating
from tests.support.service import Service, assert_problem, serving
from tests.support.valkey import ValkeyProcess
from tests.support.webhook_receivers import receiving

BASE = "/v1/webhook-endpoints"
FIFO = {"FifoQueue": "true"}


@pytest.fixture(scope="module", params=["moto", "ministack"])
def cloud(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with emulating(request.param, tmp_path_factory.mktemp("aws")) as emulator:
        yield emulator


def queue(cloud: Emulator, name: str, **attributes: str) -> tuple[str, str]:
    """Make a queue; return its address and its ARN."""
    sqs = cloud.client("sqs")
    url = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    sqs.purge_queue(QueueUrl=url)
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    return url, arn


def received(cloud: Emulator, url: str) -> list[dict[str, Any]]:
    """Take all messages of a queue out of it."""
    sqs, found = cloud.client("sqs"), []
    while rows := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"]).get(
        "Messages"
    ):
        for row in rows:
            sqs.delete_message(QueueUrl=url, ReceiptHandle=row["ReceiptHandle"])
        found += rows
    return found


def settings_with(cloud: Emulator, *arns: str, **more: Any) -> Settings:
    targets = [EventTarget(arn=arn, endpoint_url=cloud.url, **more) for arn in arns]
    return Settings(event_targets=tuple(targets), s3=cloud.s3)


def event(number: int = 1) -> OutgoingEvent:
    return OutgoingEvent(f"msg_{number}", "job.succeeded", f'{{"n":{number}}}', group="job")


class TestSenders:
    def test_a_queue_gets_the_body_with_the_id_and_the_type_beside_it(self, cloud: Emulator) -> None:
        url, arn = queue(cloud, "plain")
        assert EventSenders(settings_with(cloud, arn)).send(arn, "t", event()) == 200
        (message,) = received(cloud, url)
        assert message["Body"] == '{"n":1}'
        told = {name: each["StringValue"] for name, each in message["MessageAttributes"].items()}
        assert told == {"webhook-id": "msg_1", "type": "job.succeeded"}

    def test_a_fifo_queue_keeps_the_order_and_drops_what_comes_again(self, cloud: Emulator) -> None:
        url, arn = queue(cloud, "ordered.fifo", **FIFO)
        senders = EventSenders(settings_with(cloud, arn))
        for number in (1, 2, 1, 3, 2):
            assert senders.send(arn, "t", event(number)) == 200
        assert [message["Body"] for message in received(cloud, url)] == ['{"n":1}', '{"n":2}', '{"n":3}']

    def test_a_topic_passes_the_body_on_to_its_subscribers(self, cloud: Emulator) -> None:
        url, queue_arn = queue(cloud, "subscriber")
        sns = cloud.client("sns")
        arn = sns.create_topic(Name="events")["TopicArn"]
        sns.subscribe(
            TopicArn=arn, Protocol="sqs", Endpoint=queue_arn, Attributes={"RawMessageDelivery": "true"}
        )  # fmt: skip
        assert EventSenders(settings_with(cloud, arn)).send(arn, "t", event()) == 200
        (message,) = received(cloud, url)
        assert message["Body"] == '{"n":1}'

    def test_a_target_that_does_not_exist_answers_with_its_status(self, cloud: Emulator) -> None:
        arn = "arn:aws:sqs:eu-central-1:123456789012:nowhere"
        assert 400 <= EventSenders(settings_with(cloud, arn)).send(arn, "t", event()) < 500

    def test_another_tenants_target_and_one_without_an_answer_are_not_reached(self, cloud: Emulator) -> None:
        url, arn = queue(cloud, "private")
        senders = EventSenders(settings_with(cloud, arn, tenants=("t",)))
        with pytest.raises(Unreached, match="does not name this address"):
            senders.send(arn, "other", event())
        away = EventTarget(arn=arn, endpoint_url="http://127.0.0.1:9")
        with pytest.raises(Unreached, match="SQS does not answer"):
            EventSenders(Settings(event_targets=(away,), s3=cloud.s3)).send(arn, "t", event())
        assert received(cloud, url) == []


@pytest.mark.parametrize(
    "arn",
    ["arn:aws:lambda:eu-central-1:123456789012:f", "arn:aws:sqs:eu-central-1:1:q", "https://sqs/q", "arn:aws:sqs"],
)
def test_what_is_no_topic_and_no_queue_is_refused_by_the_settings(arn: str) -> None:
    with pytest.raises(ValueError, match="arn"):
        EventTarget(arn=arn)


@pytest.fixture
async def service(valkey: ValkeyProcess, tmp_path: Path) -> AsyncIterator[Service]:
    async with serving(valkey.url, tmp_path / "data") as service:
        yield service


def deliverer(service: Service, valkey: ValkeyProcess, settings: Settings) -> Deliverer:
    store = JobStore.open(valkey.url)
    return Deliverer(store, service.objects, GuardedClient(settings), base_url=service.settings.base_url)


async def end_a_job(service: Service) -> str:
    job = await service.submit()
    await service.end(await service.claim(), Outcome(State.SUCCEEDED, "hi"))
    return str(job["id"])


async def test_the_end_of_a_job_reaches_a_queue_is_retried_and_may_be_sent_again(
    service: Service, valkey: ValkeyProcess, cloud: Emulator
) -> None:
    url, arn = queue(cloud, "ends")
    gone = arn.replace(":ends", ":not-yet")
    allowed = service.settings.model_copy(update=dict(settings_with(cloud, arn, gone)))
    settings = service.settings.model_copy(update={"event_targets": allowed.event_targets, "s3": cloud.s3})
    service.swap(settings=settings)
    made = [await create(service, each) for each in (arn, gone)]
    job_id = await end_a_job(service)
    sender = deliverer(service, valkey, settings)
    sender.deliver_due()
    sender.close()
    (message,) = received(cloud, url)
    assert json.loads(message["Body"])["data"]["id"] == job_id
    rows = {row.endpoint: row for row in await service.jobs.run(deliveries.deliveries(JobKey("default", job_id)))}
    sent, waits = (rows[each["id"]] for each in made)
    assert (sent.state.value, sent.log[-1].note) == ("delivered", "SQS 200")
    assert (waits.state.value, waits.log[-1].note[:5]) == ("pending", "SQS 4")

    await service.jobs.run(deliveries.redeliver("default", sent.id))
    sender = deliverer(service, valkey, settings)
    sender.deliver_due()
    sender.close()
    (again,) = received(cloud, url)
    assert again["Body"] == message["Body"]
    assert again["MessageAttributes"]["webhook-id"] == message["MessageAttributes"]["webhook-id"]


async def create(service: Service, url: str, **more: Any) -> dict[str, Any]:
    response = await service.http.post(BASE, json={"url": url, **more})
    assert response.status_code == 201, response.text
    made: dict[str, Any] = response.json()
    return made


async def test_only_targets_of_the_settings_may_be_endpoints(service: Service) -> None:
    arn = "arn:aws:sqs:eu-central-1:123456789012:maps"
    target = EventTarget(arn=arn, tenants=("others",))
    service.swap(settings=service.settings.model_copy(update={"event_targets": (target,)}))
    for url in (arn, "arn:aws:sqs:eu-central-1:123456789012:unknown", "arn:nonsense"):
        problem = assert_problem(await service.http.post(BASE, json={"url": url}), 422, "invalid_request")
        assert problem["errors"][0]["pointer"] == "/url"
        assert "event_targets" in problem["errors"][0]["detail"]


async def test_a_cloud_event_is_structured_signed_and_names_the_job(service: Service, valkey: ValkeyProcess) -> None:
    with receiving(200) as receiver:
        settings = service.settings.model_copy(update={"allowed_hosts": (receiver.pair,)})
        service.swap(settings=settings)
        made = await create(service, receiver.url, format="cloudevents")
        assert made["format"] == "cloudevents"
        job_id = await end_a_job(service)
        assert (await service.http.post(f"{BASE}/{made['id']}/test")).status_code == 202
        sender = deliverer(service, valkey, settings)
        sender.deliver_due()
        sender.close()
        seen = [receiver.got.get(timeout=10) for _ in range(2)]
    events = {}
    for headers, body in seen:
        assert headers["content-type"] == "application/cloudevents+json; charset=utf-8"
        event = verify(body, headers, made["secret"])
        assert event["id"] == headers["webhook-id"]
        assert (event["specversion"], event["datacontenttype"]) == ("1.0", "application/json")
        assert event["source"] == settings.base_url
        events[event["type"]] = event
    assert events["penstock.job.succeeded"]["subject"] == f"job/{job_id}"
    assert events["penstock.job.succeeded"]["data"]["status"] == "succeeded"
    assert events["penstock.webhook.test"]["subject"] == f"webhook_endpoint/{made['id']}"

    plain = await service.http.patch(f"{BASE}/{made['id']}", json={"format": "webhook"})
    assert plain.json()["format"] == "webhook"
    refused = await service.http.patch(f"{BASE}/{made['id']}", json={"format": "xml"})
    assert_problem(refused, 422, "invalid_request")
