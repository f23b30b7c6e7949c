"""A job's objects that outlive Redis: `request.json`, which makes it accepted, and `outcome.json`, which ends it.

Both are put with `if_absent`: the first writer wins, and all others read its object. Both lie under the job's prefix. A
purge deletes the request first, because a job without a request is not recovered. A running job whose end was requested
has a `cancel.json` as well.

A live job also has a mark, the empty object `live/TENANT/ID`, so that a recovery finds the live jobs first, without a
listing of all jobs that are kept. It is put before the request and deleted after the outcome. After a crash in between,
a mark may belong to no live job; a live job without a mark was accepted by an older release.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace

from penstock.errors import ObjectExists, ObjectNotFound
from penstock.formats import WRITES
from penstock.jobs import Claim, JobKey, State, Submission
from penstock.storage.journal.json_objects import LIMIT_BYTES, put_json, read_json
from penstock.storage.objects.base import DEFAULT_CONTENT_TYPE, ObjectStore
from penstock.storage.redis.fields import dump, submission_of, submission_to_json
from penstock.storage.redis.record import readable_version

#: Jobs whose objects are listed at once, before they are deleted.
LISTINGS = 8

_REQUEST = re.compile(r"tenants/(?P<tenant>[^/]+)/jobs/(?P<id>[^/]+)/request\.json")
_MARK = re.compile(r"live/(?P<tenant>[^/]+)/(?P<id>[^/]+)")
_END = re.compile(r"(?P<prefix>tenants/[^/]+/(jobs|batches)/[^/]+/)(outcome|cancel)\.json")


@dataclass(frozen=True, slots=True)
class Manifest:
    """The data from which a job is created again when Redis has lost it."""

    submission: Submission
    created_us: int
    retention_s: float
    max_crashes: int
    #: Fields of newer formats for the job's record, and of a chain: `after` and `depth`.
    record: Mapping[str, str] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return the object's bytes."""
        return dump(
            {
                "version": self.submission.version,
                "created_us": self.created_us,
                "retention_s": self.retention_s,
                "max_crashes": self.max_crashes,
                "submission": submission_to_json(self.submission),
                **({"record": dict(self.record)} if self.record else {}),
            }
        ).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Return the manifest of an object's bytes; `RecordTooNew` for one that this release cannot read."""
        found = json.loads(data)
        version = readable_version(f"the manifest of job {found.get('submission', {}).get('key', {}).get('id')}", found)
        record = found.get("record", {})
        submission = submission_of(found["submission"], version=version)
        submission = replace(submission, after=tuple(record.get("after", "").split()))
        return cls(submission, found["created_us"], found["retention_s"], found["max_crashes"], record)


@dataclass(frozen=True, slots=True)
class StoredOutcome:
    """The outcome that decides a job's end: its final record, in the bytes of the object."""

    text: str
    state: State
    #: Fence of the last attempt; 0 if none ever began.
    fence: int

    @classmethod
    def parse(cls, text: str) -> StoredOutcome:
        """Return the outcome of a proposal, or of the stored object; `RecordTooNew` for one that cannot be read."""
        found = json.loads(text)
        record = found["record"]
        readable_version(f"the outcome of job {record.get('id')}", found)
        return cls(text, State.read(record["state"]), int(record["fence"]))

    def shows(self, claim: Claim) -> bool:
        """Return True where the attempt's artifacts are the job's result."""
        return self.state is State.SUCCEEDED and self.fence == claim.fence


def request_of(object_key: str) -> JobKey | None:
    """Return the job whose request has this key; None for any other object."""
    found = _REQUEST.fullmatch(object_key)
    return JobKey(found["tenant"], found["id"]) if found else None


def ended_prefix(object_key: str) -> str | None:
    """Return the prefix of the job or batch whose end, or whose request to end, has this key; None for others."""
    found = _END.fullmatch(object_key)
    return found["prefix"] if found else None


@dataclass(frozen=True, slots=True)
class StoredNames:
    """The manifests of a job that the object store has."""

    request: bool
    cancel: bool
    outcome: bool


def stored_names(objects: ObjectStore, key: JobKey) -> StoredNames:
    """Return the manifests of a job that the object store has, by one listing."""
    names = {info.key for info in objects.list(key.prefix)}
    return StoredNames(_request(key) in names, _cancel(key) in names, _outcome(key) in names)


@dataclass(frozen=True, slots=True)
class Mark:
    """The mark of a live job, and the time of its submission in seconds since the epoch."""

    key: JobKey
    put_s: float


def mark(objects: ObjectStore, key: JobKey) -> None:
    """Mark a job as live."""
    objects.put_bytes(_mark(key), b"", content_type=DEFAULT_CONTENT_TYPE)


def unmark(objects: ObjectStore, key: JobKey) -> None:
    """Delete a job's mark."""
    objects.delete(_mark(key))


def marks(objects: ObjectStore) -> Iterator[Mark]:
    """Yield the marks, those of a tenant together."""
    for info in objects.list("live/"):
        if found := _MARK.fullmatch(info.key):
            yield Mark(JobKey(found["tenant"], found["id"]), info.modified_s)


def marks_of(tenant: str) -> str:
    """Return the prefix of a tenant's marks."""
    return f"live/{tenant}/"


def put_manifest(objects: ObjectStore, manifest: Manifest) -> None:
    """Store a job's manifest; raise `ObjectExists` where one is stored."""
    key = _request(manifest.submission.key)
    objects.put_bytes(key, manifest.to_bytes(), content_type="application/json", if_absent=True)


def get_manifest(objects: ObjectStore, key: JobKey) -> Manifest:
    """Return a job's manifest; `ObjectNotFound` without one."""
    return Manifest.from_bytes(objects.get_bytes(_request(key), limit_bytes=LIMIT_BYTES))


def read_manifest(objects: ObjectStore, key: JobKey) -> Manifest | None:
    """Return a job's manifest; None without one."""
    try:
        return get_manifest(objects, key)
    except ObjectNotFound:
        return None


def put_outcome(objects: ObjectStore, key: JobKey, proposal: str) -> StoredOutcome:
    """Store a job's outcome unless one is stored, and return the stored outcome: from here on the job has ended."""
    try:
        objects.put_bytes(_outcome(key), proposal.encode(), content_type="application/json", if_absent=True)
    except ObjectExists:
        return StoredOutcome.parse(objects.get_bytes(_outcome(key), limit_bytes=LIMIT_BYTES).decode())
    return StoredOutcome.parse(proposal)


def read_outcome(objects: ObjectStore, key: JobKey) -> StoredOutcome | None:
    """Return a job's outcome; None before its end."""
    try:
        return StoredOutcome.parse(objects.get_bytes(_outcome(key), limit_bytes=LIMIT_BYTES).decode())
    except ObjectNotFound:
        return None


def put_cancel(objects: ObjectStore, key: JobKey, *, delete: bool) -> None:
    """Store that a job's end was requested. `delete` also requests its purge, and is never withdrawn."""
    with suppress(ObjectExists):
        put_json(objects, _cancel(key), {"version": WRITES, "delete": delete}, if_absent=not delete)


def read_cancel(objects: ObjectStore, key: JobKey) -> bool | None:
    """Return `delete` of a requested end; None where no end was requested."""
    found = read_json(objects, _cancel(key))
    return None if found is None else bool(found["delete"])


def delete_objects_of(
    objects: ObjectStore, keys: Sequence[JobKey], *, before: Callable[[frozenset[JobKey]], object]
) -> None:
    """Delete all objects of jobs, their requests first, so that a half deleted job is not recovered and run again.

    `before` is called before anything is deleted, with the jobs that have an outcome.
    """
    if not keys:
        return
    with ThreadPoolExecutor(LISTINGS, thread_name_prefix="delete") as pool:
        found = list(pool.map(lambda key: [info.key for info in objects.list(key.prefix)], keys))
    before(frozenset(key for key, names in zip(keys, found, strict=True) if _outcome(key) in names))
    objects.delete_many([_request(key) for key in keys])
    objects.delete_many([name for names in found for name in names])


def _mark(key: JobKey) -> str:
    return f"{marks_of(key.tenant)}{key.id}"


def _request(key: JobKey) -> str:
    return f"{key.prefix}request.json"


def _cancel(key: JobKey) -> str:
    return f"{key.prefix}cancel.json"


def _outcome(key: JobKey) -> str:
    return f"{key.prefix}outcome.json"
