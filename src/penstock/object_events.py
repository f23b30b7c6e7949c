"""Events of object stores, in all their formats, read as (bucket, key, version, sequencer). Pure.

An event is a hint that an object may exist. Nothing else in it is trusted: the store is asked for the object's state.

    S3 records        AWS by SQS, MinIO and Ceph by HTTP; several in one envelope
    SNS               an envelope around them, where the subscription is not raw
    EventBridge       an event of its own shape, by SQS
    MinIO's own       `EventName` and `Key` beside the records, or alone

Keys are URL-encoded in the records of AWS and MinIO (a space is `+`; MinIO encodes `/` too), and not encoded in Ceph's
records, in EventBridge and in MinIO's own `Key`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus

from penstock.errors import InvalidRequest
from penstock.json_body import parse_json

#: Nested envelopes, at most: SNS around EventBridge is two.
MAX_DEPTH = 3
MAX_KEY_BYTES = 1024
MAX_BUCKET_CHARS = 255
#: Events after which an object can be read. Others, such as deletions, are ignored.
_READABLE = ("ObjectCreated:", "ObjectRestore:Completed")
_READABLE_DETAILS = ("Object Created", "Object Restore Completed")
_HEX = re.compile(r"[0-9A-Fa-f]{1,64}")


@dataclass(frozen=True, slots=True)
class ObjectEvent:
    """An object may exist, or be new."""

    bucket: str
    key: str
    version_id: str | None = None
    #: Order of the events of one key (`is_stale`); None if the store's sequencers have no order.
    sequencer: str | None = None


@dataclass(frozen=True, slots=True)
class Notification:
    """The contents of one message."""

    events: tuple[ObjectEvent, ...] = ()
    #: Number of ignored records: deletions, folders, tests.
    ignored: int = 0
    #: Number of records in an unknown format.
    unreadable: int = 0


def read_notification(payload: Any, *, depth: int = MAX_DEPTH) -> Notification:
    """Return a message's contents; raise `InvalidRequest` or `MalformedBody` if it is no notification."""
    match payload:
        case {"Records": [*records]}:
            return _joined([_record(record) for record in records])
        case {"Type": "Notification", "Message": str(text)} if depth > 0:
            return read_notification(parse_json(text.encode("utf-8", "surrogatepass")), depth=depth - 1)
        case {"Type": "SubscriptionConfirmation" | "UnsubscribeConfirmation"}:
            raise InvalidRequest("SNS asks to confirm a subscription: subscribe an SQS queue to the topic instead")
        case {"Event": "s3:TestEvent"}:
            return Notification(ignored=1)
        case {"source": "aws.s3", "detail-type": str(kind), "detail": detail}:
            return _of_event_bridge(kind, detail)
        case {"EventName": str(name), "Key": str(path)}:
            bucket, _, key = path.partition("/")
            return _found(name, bucket, key)
    raise InvalidRequest("this is not a notification of an object store")


def read_message(text: str | bytes | None) -> Notification:
    """Return the contents of a message's text; raise `InvalidRequest` or `MalformedBody` if it is no notification.

    None is the text of a message whose body is another value.
    """
    if text is None:
        raise InvalidRequest("the message's body is not a text")
    return read_notification(parse_json(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")))


def is_stale(sequencer: str | None, latest: str | None) -> bool:
    """Return True if an event precedes the latest one of its key: hexadecimal, padded with zeros on the right.

    An equal sequencer is not stale: some servers send the same sequencer with every event.
    """
    if sequencer is None or latest is None:
        return False
    length = max(len(sequencer), len(latest))
    return sequencer.upper().ljust(length, "0") < latest.upper().ljust(length, "0")


def _joined(found: list[Notification]) -> Notification:
    return Notification(
        tuple(event for each in found for event in each.events),
        sum(each.ignored for each in found),
        sum(each.unreadable for each in found),
    )


def _record(record: Any) -> Notification:
    match record:
        case {"eventName": str(name), "s3": {"bucket": {"name": str(bucket)}, "object": {"key": str(key), **rest}}}:
            # Ceph's sequencer is a little-endian time: a newer one may be smaller.
            if str(record.get("eventSource", "")).startswith("ceph"):
                return _found(name, bucket, key, rest.get("versionId"))
            try:
                decoded = unquote_plus(key, errors="strict")
            except UnicodeDecodeError:
                return Notification(unreadable=1)
            return _found(name, bucket, decoded, rest.get("versionId"), rest.get("sequencer"))
        case {"eventName": str(name)} if not _is_readable(name):
            return Notification(ignored=1)
    return Notification(unreadable=1)


def _of_event_bridge(kind: str, detail: Any) -> Notification:
    if kind not in _READABLE_DETAILS:
        return Notification(ignored=1)
    match detail:
        case {"bucket": {"name": str(bucket)}, "object": {"key": str(key), **rest}}:
            return _found(_READABLE[0], bucket, key, rest.get("version-id"), rest.get("sequencer"))
    return Notification(unreadable=1)


def _is_readable(name: str) -> bool:
    return name.removeprefix("s3:").startswith(_READABLE)


def _found(name: str, bucket: str, key: str, version: Any = None, sequencer: Any = None) -> Notification:
    if not _is_readable(name) or (bucket and key.endswith("/")):
        return Notification(ignored=1)
    if not (0 < len(bucket) <= MAX_BUCKET_CHARS) or not _is_key(key):
        return Notification(unreadable=1)
    order = sequencer if isinstance(sequencer, str) and _HEX.fullmatch(sequencer) else None
    known = version if isinstance(version, str) and version not in ("", "null") else None
    return Notification((ObjectEvent(bucket, key, known, order),))


def _is_key(key: str) -> bool:
    try:
        return 0 < len(key.encode()) <= MAX_KEY_BYTES and "\0" not in key
    except UnicodeEncodeError:  # a lone surrogate
        return False
