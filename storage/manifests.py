"""A job's objects that outlive Redis: `request.json`, which makes it accepted, and `outcome.json`, which ends it.

Both are put with `if_absent`: the first writer wins and everybody else reads what he wrote. They lie beside each other
under the job's prefix, and the request goes first when a job is purged: what has no request is not recovered. A running
job whose end was asked for has a `cancel.json` as well.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass

from penstock.errors import ObjectExists, ObjectNotFound
from penstock.jobs import Claim, JobKey, State, Submission
from penstock.storage.base import ObjectStore
from penstock.storage.fields import dump, submission_of, submission_to_json

VERSION = 1
#: More than any body and any text output that the service takes.
LIMIT_BYTES = 256 << 20

_REQUEST = re.compile(r"tenants/(?P<tenant>[^/]+)/jobs/(?P<id>[^/]+)/request\.json")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a job is made from again when Redis has lost it."""

    submission: Submission
    created_us: int
    retention_s: float
    max_crashes: int

    def to_bytes(self) -> bytes:
        """Return the object's bytes."""
        return dump(
            {
                "version": VERSION,
                "created_us": self.created_us,
                "retention_s": self.retention_s,
                "max_crashes": self.max_crashes,
                "submission": submission_to_json(self.submission),
            }
        ).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Read what `to_bytes` wrote."""
        found = json.loads(data)
        submission = submission_of(found["submission"])
        return cls(submission, found["created_us"], found["retention_s"], found["max_crashes"])


@dataclass(frozen=True, slots=True)
class Ending:
    """How a job ended: the record as its end leaves it, in the bytes that the job's first ending put."""

    text: str
    state: State
    #: Of the attempt that was the last; 0 if none ever began.
    fence: int

    @classmethod
    def parse(cls, text: str) -> Ending:
        """Read a proposal, or the stored object."""
        record = json.loads(text)["record"]
        return cls(text, State(record["state"]), int(record["fence"]))

    def shows(self, claim: Claim) -> bool:
        """Whether this makes the attempt's artifacts the job's result."""
        return self.state is State.SUCCEEDED and self.fence == claim.fence


def request_of(object_key: str) -> JobKey | None:
    """Return the job whose request lies under this key, if it is one."""
    found = _REQUEST.fullmatch(object_key)
    return JobKey(found["tenant"], found["id"]) if found else None


def put_manifest(objects: ObjectStore, manifest: Manifest) -> Manifest | None:
    """Store a job's manifest; return the one that was there before, if there was one."""
    key = _request(manifest.submission.key)
    try:
        objects.put_bytes(key, manifest.to_bytes(), content_type="application/json", if_absent=True)
    except ObjectExists:
        return Manifest.from_bytes(objects.get_bytes(key, limit_bytes=LIMIT_BYTES))
    return None


def read_manifest(objects: ObjectStore, key: JobKey) -> Manifest | None:
    """Return a job's manifest; None without one."""
    try:
        return Manifest.from_bytes(objects.get_bytes(_request(key), limit_bytes=LIMIT_BYTES))
    except ObjectNotFound:
        return None


def put_ending(objects: ObjectStore, key: JobKey, proposal: str) -> Ending:
    """Store how a job ends unless that is stored already, and return what is stored: from here on it has ended."""
    try:
        objects.put_bytes(_outcome(key), proposal.encode(), content_type="application/json", if_absent=True)
    except ObjectExists:
        return Ending.parse(objects.get_bytes(_outcome(key), limit_bytes=LIMIT_BYTES).decode())
    return Ending.parse(proposal)


def read_ending(objects: ObjectStore, key: JobKey) -> Ending | None:
    """Return how a job ended; None if it has not."""
    try:
        return Ending.parse(objects.get_bytes(_outcome(key), limit_bytes=LIMIT_BYTES).decode())
    except ObjectNotFound:
        return None


def put_cancel(objects: ObjectStore, key: JobKey, *, delete: bool) -> None:
    """Store that a job's end was asked for, and whether it is to be deleted then: that is not taken back."""
    with suppress(ObjectExists):
        body = dump({"version": VERSION, "delete": delete}).encode()
        objects.put_bytes(_cancel(key), body, content_type="application/json", if_absent=not delete)


def read_cancel(objects: ObjectStore, key: JobKey) -> bool | None:
    """Return whether a job whose end was asked for is to be deleted; None where nobody asked."""
    try:
        return bool(json.loads(objects.get_bytes(_cancel(key), limit_bytes=LIMIT_BYTES))["delete"])
    except ObjectNotFound:
        return None


def delete_objects(objects: ObjectStore, key: JobKey) -> None:
    """Delete everything of a job, its request first: half deleted, it is not recovered and run again."""
    objects.delete(_request(key))
    objects.delete_prefix(key.prefix)


def _request(key: JobKey) -> str:
    return f"{key.prefix}request.json"


def _cancel(key: JobKey) -> str:
    return f"{key.prefix}cancel.json"


def _outcome(key: JobKey) -> str:
    return f"{key.prefix}outcome.json"
