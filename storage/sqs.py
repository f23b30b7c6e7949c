"""An SQS queue of bucket events, on boto3. Errors of boto3 become `EventQueueUnavailable`.

boto3 reads any answer with the status 200 as a success, even a web page, and fails at others with errors of Python.
`_check_answer` therefore checks each answer before boto3 reads it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from penstock.config import Settings
from penstock.errors import EventQueueUnavailable
from penstock.observation.log import plain, redact_text
from penstock.storage.objects.credentials import credentials_sought

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

#: Messages in one request: the maximum of SQS.
MESSAGES = 10
#: Seconds that a request waits for the first message: the maximum of SQS, because fewer requests cost less.
WAIT_S = 20
CONNECT_S = 3
TRIES = 3
#: Characters of an answer that an error shows, at most.
SHOWN_CHARS = 100
_REGION = re.compile(r"(?:^|\.)([a-z]{2}(?:-[a-z]+)+-\d)\.(?:[a-z]+\.)?amazonaws\.com")


@dataclass(frozen=True, slots=True)
class Message:
    """A message. Unless it is deleted, it comes again after the queue's visibility timeout."""

    id: str
    receipt: str
    #: None if it was no text.
    body: str | None


class _StrangeAnswerError(ValueError):
    """An answer that SQS does not give."""


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
            return tuple(_message(row) for row in answer.get("Messages") or ())

    def delete(self, messages: Sequence[Message]) -> int:
        """Delete messages of one `receive`; return how many the queue deleted."""
        if not messages:
            return 0
        rows = [{"Id": str(i), "ReceiptHandle": message.receipt} for i, message in enumerate(messages)]
        with self._translated():
            answer = self._client.delete_message_batch(QueueUrl=self.url, Entries=rows)  # type: ignore[arg-type]
            return len(answer.get("Successful", ()))

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
            code = _shown(error.response.get("Error", {}).get("Code", "an error"))
            raise EventQueueUnavailable(f"the queue answers {code}, {region}") from error
        except BotoCoreError as error:
            raise EventQueueUnavailable(f"the queue of bucket events does not answer, {region}") from error
        # boto3 fails with any of these at an answer whose fields have other types.
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
            why = f"the address does not answer as a queue of bucket events, {region}: {_shown(str(error))}"
            raise EventQueueUnavailable(why) from error


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
    client.meta.events.register("before-parse.sqs", _check_answer)
    return EventQueue(client, url)


def region_of(host: str) -> str | None:
    """Return the region in the host of an AWS queue: `sqs.eu-central-1.amazonaws.com`."""
    found = _REGION.search(host)
    return found.group(1) if found else None


def _check_answer(response_dict: Mapping[str, Any], **_: object) -> None:
    """Raise `_StrangeAnswerError` for an answer that is no JSON object. A handler of boto3."""
    status, body = int(response_dict["status_code"]), bytes(response_dict["body"])
    # SQS may answer with nothing while a queue is empty.
    if status >= HTTPStatus.MULTIPLE_CHOICES or (not body and _is_json(response_dict["headers"])):
        return
    try:
        is_object = isinstance(json.loads(body), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        said = body[: 8 * SHOWN_CHARS].decode("utf-8", "replace") or "nothing"
        raise _StrangeAnswerError(f"it answered {status} with {said}")


def _is_json(headers: Mapping[str, str]) -> bool:
    return headers.get("content-type", "").startswith("application/x-amz-json-")


def _message(row: Mapping[str, Any]) -> Message:
    body = row.get("Body")
    return Message(row["MessageId"], row["ReceiptHandle"], body if isinstance(body, str) else None)


def _shown(text: str) -> str:
    """Return the beginning of a text from outside, without secrets and control characters."""
    return plain(redact_text(text[: 2 * SHOWN_CHARS]))[:SHOWN_CHARS]
