"""An SQS queue of bucket events, on boto3. Errors of boto3 become `EventQueueUnavailable`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from penstock.config import Settings
from penstock.errors import EventQueueUnavailable
from penstock.storage.objects.credentials import credentials_sought

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

#: Messages in one request: the maximum of SQS.
MESSAGES = 10
#: Seconds that a request waits for the first message: the maximum of SQS, because fewer requests cost less.
WAIT_S = 20
CONNECT_S = 3
TRIES = 3
_REGION = re.compile(r"(?:^|\.)([a-z]{2}(?:-[a-z]+)+-\d)\.(?:[a-z]+\.)?amazonaws\.com")


@dataclass(frozen=True, slots=True)
class Message:
    """A message. Unless it is deleted, it comes again after the queue's visibility timeout."""

    id: str
    receipt: str
    body: str


class EventQueue:
    """The queue at an address. Safe to share between threads."""

    def __init__(self, client: SQSClient, url: str) -> None:
        self.url = url
        self._client = client

    def receive(self, *, wait_s: int = WAIT_S) -> tuple[Message, ...]:
        """Return at most `MESSAGES` messages, or none after `wait_s` without one."""
        with self._translated():
            answer = self._client.receive_message(
                QueueUrl=self.url, MaxNumberOfMessages=MESSAGES, WaitTimeSeconds=wait_s
            )
            return tuple(Message(m["MessageId"], m["ReceiptHandle"], m["Body"]) for m in answer.get("Messages", ()))

    def delete(self, messages: Sequence[Message]) -> None:
        """Delete messages of one `receive`."""
        if messages:
            rows = [{"Id": str(i), "ReceiptHandle": message.receipt} for i, message in enumerate(messages)]
            with self._translated():
                self._client.delete_message_batch(QueueUrl=self.url, Entries=rows)  # type: ignore[arg-type]

    def ping(self) -> int:
        """Return the approximate number of waiting messages."""
        with self._translated():
            answer = self._client.get_queue_attributes(
                QueueUrl=self.url, AttributeNames=["ApproximateNumberOfMessages"]
            )
            return int(answer["Attributes"]["ApproximateNumberOfMessages"])

    @contextmanager
    def _translated(self) -> Iterator[None]:
        region = f"called in region {self._client.meta.region_name}"
        try:
            with credentials_sought(EventQueueUnavailable):
                yield
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "an error")
            raise EventQueueUnavailable(f"the queue answers {code}, {region}") from error
        except BotoCoreError as error:
            raise EventQueueUnavailable(f"the queue of bucket events does not answer, {region}") from error
        # boto3 takes any answer with the status 200 for a success, also one that was cut off in its head.
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            raise EventQueueUnavailable(f"the address does not answer as a queue of bucket events, {region}") from error


def open_queue(url: str, settings: Settings) -> EventQueue:
    """Return the queue at an address, with the credentials of `s3`; sends no request."""
    parts, s3 = urlsplit(url), settings.s3
    with credentials_sought(EventQueueUnavailable):
        client = boto3.session.Session().client(
            "sqs",
            endpoint_url=f"{parts.scheme}://{parts.netloc}",
            region_name=region_of(parts.hostname or "") or s3.region,
            aws_access_key_id=s3.access_key_id,
            aws_secret_access_key=s3.secret_access_key.get_secret_value() if s3.secret_access_key else None,
            config=Config(
                connect_timeout=CONNECT_S,
                read_timeout=WAIT_S + 10,
                retries={"mode": "standard", "total_max_attempts": TRIES},
                tcp_keepalive=True,
            ),
        )
    return EventQueue(client, url)


def region_of(host: str) -> str | None:
    """Return the region in the host of an AWS queue: `sqs.eu-central-1.amazonaws.com`."""
    found = _REGION.search(host)
    return found.group(1) if found else None
