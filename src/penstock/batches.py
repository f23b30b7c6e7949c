"""The batch: many requests, sent at once and run as separate jobs. Nothing here does I/O.

A batch's counts and status depend only on its members' states, its number of invalid lines, and on whether a cancel was
requested or the deadline has passed.
"""

from __future__ import annotations

import json
import uuid
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from penstock.errors import ErrorReport
from penstock.formats import BESIDE, OWN, beside, carrying, inside, known, unknown
from penstock.jobs import Artifact, JobKey, State, TenantKey

#: Namespace of the members' ids: UUIDv5 of the batch's id and the line's number.
_NAMESPACE = uuid.UUID("3b0f0a52-7f0e-5c53-8f0b-0f4d1f6f2c11")

_WAITING = (State.RESERVED, State.QUEUED, State.DELAYED)


class BatchStatus(StrEnum):
    """The status of a batch."""

    #: Lines become jobs, and jobs run.
    RUNNING = "running"
    #: A cancel was requested.
    CANCELING = "canceling"
    #: The batch's deadline has passed.
    EXPIRING = "expiring"
    #: Every line has its outcome.
    COMPLETED = "completed"
    #: Ended by a cancel; earlier successes are in the results.
    CANCELED = "canceled"
    #: Ended by its deadline; earlier successes are in the results.
    EXPIRED = "expired"

    @property
    def terminal(self) -> bool:
        """True if the batch has ended."""
        return self in (BatchStatus.COMPLETED, BatchStatus.CANCELED, BatchStatus.EXPIRED)


class BatchKey(TenantKey):
    """The unique name of a batch."""

    __slots__ = ()

    @property
    def prefix(self) -> str:
        """The prefix of the batch's objects in the store."""
        return f"tenants/{self.tenant}/batches/{self.id}/"

    def member(self, line: int) -> JobKey:
        """Return the key of a line's job; it is always the same, so a line never becomes two jobs."""
        return JobKey(self.tenant, str(uuid.uuid5(_NAMESPACE, f"{self.id} line {line}")))


@dataclass(frozen=True, slots=True)
class Counts:
    """The numbers of a batch's lines by status. They add up to `total`."""

    total: int
    #: Waiting lines, including those that are no jobs yet.
    queued: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    canceled: int = 0
    expired: int = 0
    #: Lines that cannot be jobs.
    invalid: int = 0

    @property
    def over(self) -> int:
        """The number of lines with an outcome."""
        return self.total - self.queued - self.running


@dataclass(frozen=True, slots=True)
class BatchManifest:
    """The stored description of a batch, from which it is restored if Redis loses it. Times are by Redis' clock."""

    key: BatchKey
    #: SHA-256 of the canonical body; two requests under one id must have the same.
    fingerprint: str
    #: Key of the object with the requests, one JSON document per line; its size in bytes; its number of requests.
    lines_key: str
    size_bytes: int
    total: int
    created_us: int
    ttl_s: float
    retention_s: float
    #: Model of lines that name none.
    model: str | None = None
    priority: str = "low"
    metadata: Mapping[str, str] = field(default_factory=dict)
    traceparent: str | None = None
    idempotency_key: str | None = None
    #: Address that is told the end of the batch.
    webhook: str | None = field(default=None, metadata=BESIDE)
    #: Oldest format that can run the batch, and the fields of newer formats, which are carried unchanged (`formats`).
    version: int = 1
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def deadline_s(self) -> float:
        """The batch's deadline, in seconds since the epoch."""
        return self.created_us / 1e6 + self.ttl_s

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as JSON-ready data, without the fields of `more`."""
        return carrying(self.extra, inside(BatchManifest, self._own()))

    @property
    def more(self) -> dict[str, Any]:
        """The fields that are stored beside the manifest, as JSON-ready data."""
        return beside(BatchManifest, self._own())

    @classmethod
    def from_json(cls, data: Mapping[str, Any], more: Mapping[str, Any], *, version: int = 1) -> BatchManifest:
        """Restore a manifest from the output of `to_json` and `more`, maybe of a newer release."""
        key = BatchKey(data["key"]["tenant"], data["key"]["id"])
        found = cls(**{**known(cls, {**data, **more}), "key": key}, version=version)
        return replace(found, extra=unknown(data, found._own()))

    def _own(self) -> dict[str, Any]:
        row = {name: value for name, value in asdict(self).items() if name not in OWN}
        return {**row, "metadata": self.metadata}


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position up to which a batch's lines were expanded. The next line begins at `offset` of the lines' object."""

    #: Lines before the next one, including blank ones.
    line: int = 0
    offset: int = 0
    #: Number of expanded requests, and of the invalid ones among them.
    requests: int = 0
    invalid: int = 0


BEGINNING = Cursor()


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """The end of a batch: its status, the counts of its lines, and the result files."""

    status: BatchStatus
    counts: Counts
    completed_s: float
    artifacts: tuple[Artifact, ...] = ()
    #: Fields of newer formats, which are carried unchanged.
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def to_json(self) -> dict[str, Any]:
        """Return the end as JSON-ready data."""
        return carrying(self.extra, self._own())

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BatchEnd:
        """Restore an end from the output of `to_json`."""
        files = tuple(Artifact(**known(Artifact, artifact)) for artifact in data["artifacts"])
        counts = Counts(**known(Counts, data["counts"]))
        found = cls(BatchStatus(data["status"]), counts, data["completed_s"], files)
        return replace(found, extra=unknown(data, found._own()))

    def _own(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name not in OWN}


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch's record at one moment."""

    manifest: BatchManifest
    cursor: Cursor = BEGINNING
    #: Number of members by state.
    states: Mapping[State, int] = field(default_factory=dict)
    cancel_requested: bool = False
    #: True until its manifest is known to be stored: no client has been told that the batch was accepted.
    reserved: bool = False
    #: Redis' clock at the time of reading, in seconds.
    at_s: float = 0.0
    end: BatchEnd | None = None
    #: Revision; it increases with every change of the record, but not of members.
    revision: int = 0

    @property
    def key(self) -> BatchKey:
        """The batch's full name."""
        return self.manifest.key

    @property
    def closing(self) -> bool:
        """True if no further line may become a job."""
        return self.cancel_requested or self.at_s >= self.manifest.deadline_s

    @property
    def expanded(self) -> bool:
        """True if every line was expanded."""
        return self.cursor.requests >= self.manifest.total

    @property
    def live(self) -> int:
        """The number of members that have not ended."""
        return sum(self.states.get(state, 0) for state in (*_WAITING, State.RUNNING, State.OTHER))

    @property
    def counts(self) -> Counts:
        """The counts of lines by status."""
        if self.end is not None:
            return self.end.counts
        return counts(self.manifest.total, self.states, self.cursor.invalid)

    @property
    def status(self) -> BatchStatus:
        """The batch's public status."""
        if self.end is not None:
            return self.end.status
        if not self.closing:
            return BatchStatus.RUNNING
        return BatchStatus.CANCELING if self.cancel_requested else BatchStatus.EXPIRING

    @property
    def expires_s(self) -> float | None:
        """The time when the batch's results are purged; None before its end."""
        return None if self.end is None else self.end.completed_s + self.manifest.retention_s


def counts(total: int, states: Mapping[State, int], invalid: int) -> Counts:
    """Return the counts of a batch's lines from its members' states; lines that are no jobs yet count as queued."""
    over = {state.value: max(0, states.get(state, 0)) for state in State if state not in (*_WAITING, State.OTHER)}
    return Counts(total, queued=max(0, total - invalid - sum(over.values())), invalid=invalid, **over)


def final_status(found: Counts, *, cancel_requested: bool, overdue: bool) -> BatchStatus:
    """Return the final status of a batch from the counts of its lines.

    A cancel or a deadline counts only if it stopped a line.
    """
    if cancel_requested and found.canceled:
        return BatchStatus.CANCELED
    if overdue and found.canceled + found.expired:
        return BatchStatus.EXPIRED
    return BatchStatus.COMPLETED


def event_of(ended: BatchEnd) -> str:
    """Return the event of a batch's end: `batch.completed`, `batch.canceled` or `batch.expired`."""
    return f"batch.{ended.status.value}"


def webhook_body(manifest: BatchManifest, ended: BatchEnd) -> str:
    """Return the body of a batch's webhook, the same whenever it is made."""
    created, completed = (
        datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")
        for at in (manifest.created_us / 1e6, ended.completed_s)
    )
    files = [{"name": f.name, "size_bytes": f.size_bytes, "sha256": f.sha256} for f in ended.artifacts]
    here = f"/v1/batches/{manifest.key.id}"
    data = {
        "id": manifest.key.id, "object": "batch", "status": ended.status.value, "counts": asdict(ended.counts),
        "created_at": created, "completed_at": completed, "artifacts": files, "links": {"self": here},
    }  # fmt: skip
    body = {"type": event_of(ended), "timestamp": completed, "data": data | {"metadata": dict(manifest.metadata)}}
    if len(text := json.dumps(body, separators=(",", ":"))) <= MAX_WEBHOOK_BYTES:
        return text
    return json.dumps(body | {"data": data | {"metadata": None}}, separators=(",", ":"))


#: Bytes of the body of a webhook, at most; a larger one leaves the metadata out.
MAX_WEBHOOK_BYTES = 20_000


class Verdict(StrEnum):
    """The outcome of a line: the final state of its job, or `invalid`."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    EXPIRED = "expired"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Invalid:
    """A line that cannot be a job, and the reason."""

    line: int
    error: ErrorReport
    custom_id: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the line as JSON-ready data."""
        return {"line": self.line, "custom_id": self.custom_id, "error": self.error.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Invalid:
        """Restore a line from the output of `to_json`."""
        return cls(data["line"], ErrorReport.from_json(data["error"]), data["custom_id"])


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is not blank. `data` is None if the line has more bytes than a request may have."""

    #: Number of the line from 1, including blank lines.
    number: int
    data: bytes | None
    #: Offset of the next line.
    end: int


def lines_of(chunks: Iterable[bytes], *, limit_bytes: int, after: Cursor = Cursor()) -> Iterator[Line]:
    """Yield the non-blank lines of an object's bytes from `after.offset` on, without byte order marks.

    At most one line of `limit_bytes` and one chunk are held in memory.
    """
    number, begins, kept, length = after.line, after.offset, bytearray(), 0
    for chunk in chunks:
        parts = chunk.split(b"\n")
        for index, part in enumerate(parts):
            if index:  # a line ended before this part
                number, begins = number + 1, begins + length + 1
                yield from _line(number, kept, length, limit_bytes, begins)
                kept, length = bytearray(), 0
            length += len(part)
            if len(kept) <= limit_bytes:
                kept += part
    if length:
        yield from _line(number + 1, kept, length, limit_bytes, begins + length)


def _line(number: int, kept: bytearray, length: int, limit_bytes: int, end: int) -> Iterator[Line]:
    if length > limit_bytes:
        yield Line(number, None, end)
    elif data := bytes(kept).removeprefix(BOM_UTF8).strip():
        yield Line(number, data, end)
