"""What a batch is: many requests, sent at once and run as jobs of their own. Nothing here does I/O.

A batch's counts and status are a function of its members' states, of how many of its lines were invalid, and of whether
its end was asked for or its time is over.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from penstock.jobs import Artifact, JobKey, State
from penstock.reports import ErrorReport

#: The ids of members are UUIDv5 under this, of the batch's id and the number of their line.
_NAMESPACE = uuid.UUID("3b0f0a52-7f0e-5c53-8f0b-0f4d1f6f2c11")

_WAITING = (State.RESERVED, State.QUEUED, State.DELAYED)


class BatchStatus(StrEnum):
    """Where a batch stands."""

    #: Its lines become jobs, and its jobs run.
    RUNNING = "running"
    #: Somebody asked for its end.
    CANCELING = "canceling"
    #: Its time is over.
    EXPIRING = "expiring"
    #: Every line has its outcome by itself.
    COMPLETED = "completed"
    #: Ended because somebody asked; what succeeded before is in the results.
    CANCELED = "canceled"
    #: Ended because its time was over; what succeeded before is in the results.
    EXPIRED = "expired"

    @property
    def terminal(self) -> bool:
        """Whether the batch is over."""
        return self in (BatchStatus.COMPLETED, BatchStatus.CANCELED, BatchStatus.EXPIRED)


@dataclass(frozen=True, slots=True)
class BatchKey:
    """A batch's full name."""

    tenant: str
    id: str

    def __str__(self) -> str:
        return f"{self.tenant}/{self.id}"

    @classmethod
    def parse(cls, text: str) -> BatchKey:
        """Read what `str` wrote."""
        tenant, _, batch_id = text.partition("/")
        return cls(tenant, batch_id)

    @property
    def prefix(self) -> str:
        """Where the batch's objects lie in the store."""
        return f"tenants/{self.tenant}/batches/{self.id}/"

    def member(self, line: int) -> JobKey:
        """Return the key of the job that a line becomes, whoever asks: it becomes no second one."""
        return JobKey(self.tenant, str(uuid.uuid5(_NAMESPACE, f"{self.id} line {line}")))


@dataclass(frozen=True, slots=True)
class Counts:
    """How many of a batch's lines stand where. The parts add up to `total`."""

    total: int
    #: Lines that are no job yet among them.
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
        """How many lines have their outcome."""
        return self.total - self.queued - self.running


@dataclass(frozen=True, slots=True)
class BatchManifest:
    """What a batch is made from, and made anew from when Redis has lost it. Times are Redis' clock."""

    key: BatchKey
    #: SHA-256 of the canonical body; two requests under one id must have the same.
    fingerprint: str
    #: The object that holds the requests, one JSON document to a line, and how many bytes and requests those are.
    lines_key: str
    size_bytes: int
    total: int
    created_us: int
    ttl_s: float
    retention_s: float
    #: Of lines that name none.
    model: str | None = None
    priority: str = "low"
    metadata: Mapping[str, str] = field(default_factory=dict)
    traceparent: str | None = None
    idempotency_key: str | None = None

    @property
    def deadline_s(self) -> float:
        """When the batch's time is over, in seconds since the epoch."""
        return self.created_us / 1e6 + self.ttl_s

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as JSON-ready data."""
        return {**asdict(self), "metadata": dict(self.metadata)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BatchManifest:
        """Read what `to_json` wrote."""
        return cls(**{**data, "key": BatchKey(**data["key"])})


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a batch's lines have become jobs. A further line begins at `offset` of the lines' object."""

    #: Lines before the next one, blank ones included.
    line: int = 0
    offset: int = 0
    #: How many requests had their turn, and how many of them were invalid.
    requests: int = 0
    invalid: int = 0


BEGINNING = Cursor()


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """How a batch ended: its status, what its lines came to, and the files that say so line by line."""

    status: BatchStatus
    counts: Counts
    completed_s: float
    artifacts: tuple[Artifact, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the end as JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BatchEnd:
        """Read what `to_json` wrote."""
        files = tuple(Artifact(**artifact) for artifact in data["artifacts"])
        return cls(BatchStatus(data["status"]), Counts(**data["counts"]), data["completed_s"], files)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as the store holds it at one moment."""

    manifest: BatchManifest
    cursor: Cursor = BEGINNING
    #: Its members by state.
    states: Mapping[State, int] = field(default_factory=dict)
    cancel_requested: bool = False
    #: Whether its manifest is not known to be stored yet: nobody was told that it was accepted.
    reserved: bool = False
    #: Redis' clock when this was read, in seconds.
    at_s: float = 0.0
    end: BatchEnd | None = None
    #: Grows with every change of the record; members' changes are not counted.
    revision: int = 0

    @property
    def key(self) -> BatchKey:
        """The batch's full name."""
        return self.manifest.key

    @property
    def closing(self) -> bool:
        """Whether no further line shall become a job."""
        return self.cancel_requested or self.at_s >= self.manifest.deadline_s

    @property
    def expanded(self) -> bool:
        """Whether every line had its turn."""
        return self.cursor.requests >= self.manifest.total

    @property
    def live(self) -> int:
        """How many members are not over."""
        return sum(self.states.get(state, 0) for state in (*_WAITING, State.RUNNING))

    @property
    def counts(self) -> Counts:
        """Where the lines stand."""
        if self.end is not None:
            return self.end.counts
        return counts(self.manifest.total, self.states, self.cursor.invalid)

    @property
    def status(self) -> BatchStatus:
        """The batch's status as the public sees it."""
        if self.end is not None:
            return self.end.status
        if not self.closing:
            return BatchStatus.RUNNING
        return BatchStatus.CANCELING if self.cancel_requested else BatchStatus.EXPIRING

    @property
    def expires_s(self) -> float | None:
        """When the batch's results are purged; None before its end."""
        return None if self.end is None else self.end.completed_s + self.manifest.retention_s


def counts(total: int, states: Mapping[State, int], invalid: int) -> Counts:
    """Return where a batch's lines stand, by its members' states; what is no job yet is queued."""
    over = {state.value: max(0, states.get(state, 0)) for state in State if state not in _WAITING}
    return Counts(total, queued=max(0, total - invalid - sum(over.values())), invalid=invalid, **over)


def final_status(found: Counts, *, cancel_requested: bool, overdue: bool) -> BatchStatus:
    """Return how a batch ended whose lines came to this.

    A cancel, or the end of the batch's time, that found every line over has changed nothing.
    """
    if cancel_requested and found.canceled:
        return BatchStatus.CANCELED
    if overdue and found.canceled + found.expired:
        return BatchStatus.EXPIRED
    return BatchStatus.COMPLETED


class Verdict(StrEnum):
    """What a line came to: the state of its job, or that it could be none."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    EXPIRED = "expired"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Invalid:
    """A line that cannot be a job, and why."""

    line: int
    error: ErrorReport
    custom_id: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON-ready data."""
        return {"line": self.line, "custom_id": self.custom_id, "error": self.error.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Invalid:
        """Read what `to_json` wrote."""
        return cls(data["line"], ErrorReport.from_json(data["error"]), data["custom_id"])


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is not blank. `data` is None where it has more bytes than a request may."""

    #: From 1, blank ones counted.
    number: int
    data: bytes | None
    #: Where the next line begins.
    end: int


def lines_of(chunks: Iterable[bytes], *, limit_bytes: int, after: Cursor = Cursor()) -> Iterator[Line]:
    """Yield the lines in an object's bytes from `after.offset` on, blank ones left out.

    No more than a line of `limit_bytes` and a chunk is held in memory.
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
    elif data := bytes(kept).strip():
        yield Line(number, data, end)
