"""SNS topics and SQS queues that receive events in place of a URL, on boto3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from penstock.config import Settings
from penstock.config_tables import EventTarget, find_target
from penstock.errors import Unreached
from penstock.storage.objects.credentials import credentials_sought

CONNECT_S, READ_S = 3, 10


@dataclass(frozen=True, slots=True)
class OutgoingEvent:
    """An event to send; a receiver knows by `id` that it was sent before. Events of one `group` keep their order."""

    id: str
    type: str
    body: str
    group: str


class EventSenders:
    """The senders to the targets of the settings. Safe to share between threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._clients: dict[EventTarget, Any] = {}
        #: Addresses of queues, which SQS gives for their names.
        self._queues: dict[EventTarget, str] = {}

    def send(self, arn: str, tenant: str, event: OutgoingEvent) -> int:
        """Send an event to a target and return the status of the answer; `Unreached` without one.

        A target that the settings do not name for this tenant, any more, is `Unreached` too.
        """
        target = find_target(self._settings.event_targets, arn, tenant)
        if target is None:
            raise Unreached("event_targets of the settings does not name this address")
        try:
            with credentials_sought(Unreached):
                answer = self._sent(target, event)
        except ClientError as error:
            return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500))
        except BotoCoreError as error:
            raise Unreached(f"{target.service.upper()} does not answer") from error
        return int(answer["ResponseMetadata"]["HTTPStatusCode"])

    def _sent(self, target: EventTarget, event: OutgoingEvent) -> Any:
        """Send an event; return boto3's answer, or raise its error."""
        client = self._clients.get(target) or self._clients.setdefault(target, _client(target, self._settings))
        more = {"MessageAttributes": _attributes(event), **_order(event, target)}
        if target.service == "sns":
            return client.publish(TopicArn=target.arn, Message=event.body, **more)
        if target not in self._queues:
            found = client.get_queue_url(QueueName=target.name, QueueOwnerAWSAccountId=target.account)
            self._queues[target] = found["QueueUrl"]
        return client.send_message(QueueUrl=self._queues[target], MessageBody=event.body, **more)


def _client(target: EventTarget, settings: Settings) -> Any:
    """Return boto3's client of a target's service, with the credentials of `s3`; sends no request."""
    s3 = settings.s3
    return boto3.session.Session().client(
        target.service,  # type: ignore[call-overload]  # two services by one name
        endpoint_url=target.endpoint_url,
        region_name=target.region,
        aws_access_key_id=s3.access_key_id,
        aws_secret_access_key=s3.secret_access_key.get_secret_value() if s3.secret_access_key else None,
        config=Config(connect_timeout=CONNECT_S, read_timeout=READ_S, retries={"total_max_attempts": 1}),
    )


def _attributes(event: OutgoingEvent) -> dict[str, Any]:
    named = {"webhook-id": event.id, "type": event.type}
    return {name: {"DataType": "String", "StringValue": value} for name, value in named.items()}


def _order(event: OutgoingEvent, target: EventTarget) -> dict[str, str]:
    """Return what FIFO topics and queues want: they keep the order of a group, and drop an id that comes again."""
    return {"MessageGroupId": event.group, "MessageDeduplicationId": event.id} if target.is_fifo else {}
