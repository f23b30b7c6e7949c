"""An SQS queue of bucket events, on boto3. Errors of boto3 become `EventQueueUnavailable`.

boto3 reads any answer with the status 200 as a success, even a web page, and fails at others with errors of Python.
`_read_answer` therefore checks each answer before boto3 reads it, and leaves boto3 only the fields that it checked.
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
from botocore.model import OperationModel
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_pascal

from penstock.config import Settings
from penstock.errors import EventQueueUnavailable
from penstock.json_body import wrong_fields
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


class _Fields(BaseModel):
    """Fields of an answer, by their names in Python. Fields that nobody reads are dropped."""

    model_config = ConfigDict(alias_generator=to_pascal, frozen=True)


class _ReceivedMessage(_Fields):
    message_id: str
    receipt_handle: str
    #: Any value: a body that is no text is a problem of this message, not of the queue.
    body: Any = None


class _Received(_Fields):
    #: An empty queue's answer has no list, an empty one, or null.
    messages: tuple[_ReceivedMessage, ...] | None = None


class _Entry(_Fields):
    id: str


class _Deleted(_Fields):
    successful: tuple[_Entry, ...] | None = None


class _Count(_Fields):
    approximate_number_of_messages: int = Field(ge=0, lt=2**63)


class _Counted(_Fields):
    attributes: _Count


class _Refusal(BaseModel):
    code: str = Field(alias="__type")


_ANSWERS: dict[str, type[BaseModel]] = {
    "ReceiveMessage": _Received,
    "DeleteMessageBatch": _Deleted,
    "GetQueueAttributes": _Counted,
}


class _StrangeAnswerError(Exception):
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
        return tuple(_message(row) for row in answer.get("Messages", ()))

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
        except _StrangeAnswerError as error:
            sentence = f"the address does not answer as a queue of bucket events, {region}: {error}"
            raise EventQueueUnavailable(sentence) from error


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
    client.meta.events.register("before-parse.sqs", _read_answer)
    return EventQueue(client, url)


def region_of(host: str) -> str | None:
    """Return the region in the host of an AWS queue: `sqs.eu-central-1.amazonaws.com`."""
    found = _REGION.search(host)
    return found.group(1) if found else None


def _read_answer(operation_model: OperationModel, response_dict: dict[str, Any], **_: object) -> None:
    """Check an answer and reduce it to the fields that are read; raise `_StrangeAnswerError`. A handler of boto3."""
    status, body = int(response_dict["status_code"]), bytes(response_dict["body"])
    if status >= HTTPStatus.MULTIPLE_CHOICES:
        response_dict["body"] = _refusal(body)
        return
    if not body and _is_json(response_dict["headers"]):
        body = b"{}"  # boto3 reads it so, and SQS may answer so while a queue is empty
    try:
        answer = _ANSWERS[operation_model.name].model_validate(json.loads(body))
    except (ValueError, RecursionError) as error:
        wrong = f": {wrong_fields(error, whole='the answer')}" if isinstance(error, ValidationError) else ""
        raise _StrangeAnswerError(f"it answered {status} with {_shown_body(body)}{wrong[:SHOWN_CHARS]}") from error
    response_dict["body"] = json.dumps(answer.model_dump(by_alias=True, exclude_none=True)).encode()


def _refusal(body: bytes) -> bytes:
    """Return a refusal reduced to its code. Without a code, boto3 takes the status for it."""
    try:
        return json.dumps({"__type": _Refusal.model_validate(json.loads(body)).code}).encode()
    except (ValueError, RecursionError):
        return b"{}"


def _is_json(headers: Mapping[str, str]) -> bool:
    return headers.get("content-type", "").startswith("application/x-amz-json-")


def _message(row: Mapping[str, Any]) -> Message:
    body = row.get("Body")
    return Message(row["MessageId"], row["ReceiptHandle"], body if isinstance(body, str) else None)


def _shown_body(body: bytes) -> str:
    return _shown(body[: 8 * SHOWN_CHARS].decode("utf-8", "replace")) or "nothing"


def _shown(text: str) -> str:
    """Return the beginning of a text from outside, without secrets and control characters."""
    return plain(redact_text(text[: 2 * SHOWN_CHARS]))[:SHOWN_CHARS]
