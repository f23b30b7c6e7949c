"""The job: its states and its values. Nothing here does I/O."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal, Self, TypeAlias

from penstock.errors import ErrorReport

#: The priority of a job over others of its tenant, as requests name it.
Priority: TypeAlias = Literal["low", "normal", "high"]

#: Namespace of the ids of parts: UUIDv5 of the job, the digest of its division, and the range of units.
_PARTS = uuid.UUID("8e2f6c1b-58d5-5a0c-9f3e-0b9a6d0d7c55")


class State(StrEnum):
    """The state of a job in the store."""

    #: Stored in Redis, not yet in the object store: the job counts, but cannot be claimed, and its client waits.
    RESERVED = "reserved"
    #: Waiting for a worker.
    QUEUED = "queued"
    #: Waiting for the time of its next attempt.
    DELAYED = "delayed"
    #: Leased to a worker.
    RUNNING = "running"
    #: Done; its result is visible.
    SUCCEEDED = "succeeded"
    #: Ended with an error.
    FAILED = "failed"
    #: Canceled on request.
    CANCELED = "canceled"
    #: Waited longer than its queue TTL.
    EXPIRED = "expired"
    #: A state of a newer format, which only newer processes change; `Job.shown` is its public state.
    OTHER = "other"

    @classmethod
    def read(cls, text: str) -> State:
        """Return the state of a stored text; OTHER for one that this release does not know."""
        return cls(text) if text in _STATES else cls.OTHER


_STATES = frozenset(state.value for state in State)


TERMINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELED, State.EXPIRED})


class Status(StrEnum):
    """The public state of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    CANCELING = "canceling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    EXPIRED = "expired"

    @property
    def terminal(self) -> bool:
        """True if the job has ended."""
        return self.value in TERMINAL


#: The public state of a job in each known state but RUNNING.
_STATUS: Mapping[State, Status] = MappingProxyType(
    {State.RESERVED: Status.QUEUED, State.DELAYED: Status.QUEUED}
    | {state: Status(state.value) for state in State if state.value in set(Status)}
)


class Phase(StrEnum):
    """The current phase of a live job."""

    WAITING = "waiting"
    LOADING = "loading"
    FETCHING = "fetching"
    PREPROCESSING = "preprocessing"
    INFERRING = "inferring"
    POSTPROCESSING = "postprocessing"
    UPLOADING = "uploading"

    @classmethod
    def read(cls, text: str) -> Phase:
        """Return the phase of a stored text; WAITING for one that this release does not know."""
        try:
            return cls(text)
        except ValueError:
            return cls.WAITING


class QueueMode(StrEnum):
    """The mode of a queue."""

    OPEN = "open"
    #: Jobs are accepted but not claimed; running jobs continue.
    PAUSED = "paused"
    #: No jobs are accepted; waiting jobs are still run.
    DRAINING = "draining"


class Delivery(StrEnum):
    """The state of a job's webhooks; it never changes the job's state."""

    NONE = "none"
    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"

    @classmethod
    def read(cls, text: str) -> Delivery:
        """Return the state of a stored text; PENDING for one that this release does not know."""
        try:
            return cls(text)
        except ValueError:
            return cls.PENDING


@dataclass(frozen=True, slots=True)
class TenantKey:
    """The unique name of a job, a batch or another object of a tenant."""

    tenant: str
    id: str

    def __str__(self) -> str:
        return f"{self.tenant}/{self.id}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the output of `str`."""
        tenant, _, own_id = text.partition("/")
        return cls(tenant, own_id)


class JobKey(TenantKey):
    """The unique name of a job."""

    __slots__ = ()

    @property
    def prefix(self) -> str:
        """The prefix of the job's objects in the store."""
        return f"tenants/{self.tenant}/jobs/{self.id}/"

    @property
    def checkpoints(self) -> str:
        """The prefix of the files that attempts save for later attempts, until the job is terminal."""
        return f"{self.prefix}checkpoints/"

    def part(self, digest: str, first: int, last: int) -> JobKey:
        """Return the key of a part; the same part of a job always has the same."""
        return JobKey(self.tenant, str(uuid.uuid5(_PARTS, f"{self} {digest} {first}-{last}")))


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a job that another worker computes: a range of the units in which its work can be saved."""

    #: The job.
    parent: JobKey
    #: Digest of the division: of everything that the units' contents depend on, and of the kind of machine.
    digest: str
    #: First and last unit, both included.
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a job, of its latest split."""

    number: int
    #: Parts that have ended, whether well or not.
    ended: int


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an attempt or a job. A job's progress never decreases, whatever its attempts do."""

    done: int = 0
    total: int | None = None
    unit: str = "prompts"
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Webhook:
    """The receiver of a job's events. By default it receives the four events of a job's end."""

    url: str
    events: tuple[str, ...] = ("job.succeeded", "job.failed", "job.canceled", "job.expired")
    #: Addresses of events that are not sent to `url`, by event.
    urls: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Artifact:
    """A finished file of a job's result, as its manifest lists it. `key` is its place in the object store."""

    name: str
    content_type: str
    size_bytes: int
    sha256: str
    key: str


def trace_of(traceparent: str | None) -> dict[str, str]:
    """Return the log fields of a valid `traceparent`."""
    return {} if traceparent is None else {"trace_id": traceparent.split("-")[1]}


@dataclass(frozen=True, slots=True)
class Submission:
    """A validated request, ready to become a job."""

    key: JobKey
    model: str
    queue: str
    input: Mapping[str, Any]
    #: SHA-256 of the canonical body; two requests under one id must have the same.
    fingerprint: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    webhook: Webhook | None = None
    priority: int = 0
    queue_ttl_s: float = 86_400
    execution_timeout_s: float = 3_600
    max_attempts: int = 5
    retry_of: str | None = None
    traceparent: str | None = None
    #: Idempotency key from the client, if any; the job's id is derived from it.
    idempotency_key: str | None = None
    #: Id of the job's batch, number of its line there, and the client's name for that line.
    batch_id: str | None = None
    batch_line: int | None = None
    custom_id: str | None = None
    #: Data that a facade needs for its answers about this job (JSON-ready, `{"ogc": ...}`). Only the facade reads it.
    facade: Mapping[str, Any] = field(default_factory=dict)
    #: Dropped object of the job, in the format of `storage.drop_events`, for notifying the keeper of the job's end.
    drop: str | None = None
    #: Ids of the job's upstreams: it waits until they have succeeded.
    after: tuple[str, ...] = ()
    #: Bytes of the media that the job names; None without media, and where the size of one is not known. The record
    #: has it, the stored request does not: a job that is created again from its request has none.
    media_bytes: int | None = field(default=None, compare=False)
    #: Oldest format that can run the job, and the fields of newer formats, which are carried unchanged (`formats`).
    version: int = 1
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def log_ids(self) -> dict[str, str]:
        """The ids in log lines about the job: `job`, and `trace_id` if its request had a trace context."""
        return {"job": str(self.key)} | trace_of(self.traceparent)


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that the reported attempts of a job used together; None for what nothing has counted."""

    #: Seconds of a device, shared out over the jobs of each batch.
    device_s: float | None = None
    #: Bytes of fetched media, and of the result's artifacts.
    bytes_in: int | None = None
    bytes_out: int | None = None
    #: Tokens of texts, given and generated.
    tokens_in: int | None = None
    tokens_out: int | None = None
    #: Pixels of images and scenes given to the model.
    pixels: int | None = None


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """A phase of an attempt, with its times in seconds since the epoch; `ended_s` is None while it lasts."""

    phase: Phase
    started_s: float
    ended_s: float | None


@dataclass(frozen=True, slots=True)
class AttemptTimes:
    """The course of one attempt. Times are seconds since the epoch by Redis' clock.

    A heartbeat stores the phases; an attempt whose worker died has those of its latest heartbeat, and lasts until
    somebody noticed.
    """

    number: int
    #: Unique in the job: an attempt that a stopping worker gave back begins again under its number, with another fence.
    fence: int
    worker: str
    started_s: float
    #: None while the attempt runs.
    ended_s: float | None
    #: The status of the job that the attempt ended; `retrying`, `released`, `split` or `lost` for any other; None while
    #: it runs.
    outcome: str | None
    phases: tuple[PhaseTimes, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """A job's record at one moment. Times are seconds since the epoch by Redis' clock."""

    submission: Submission
    state: State
    created_s: float
    cancel_requested: bool = False
    phase: Phase = Phase.WAITING
    attempt: int = 0
    crashes: int = 0
    fence: int = 0
    progress: Progress = Progress()
    #: Progress of the latest attempt itself; `progress` may show the higher progress of an earlier one.
    own_done: int = 0
    #: Start of the latest attempt.
    started_s: float | None = None
    completed_s: float | None = None
    #: Time of a delayed job's next attempt.
    due_s: float | None = None
    #: Time when the record is purged.
    expires_s: float | None = None
    text: str | None = None
    data: Mapping[str, Any] | None = None
    #: The text and data in the object store, where they are large: `text` and `data` are then None until
    #: `journal.whole` reads them.
    output: Artifact | None = None
    artifacts: tuple[Artifact, ...] = ()
    error: ErrorReport | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    #: The model, software, machine and inputs that made the result, as JSON text: lists read it and never need it.
    provenance: str | None = None
    delivery: Delivery = Delivery.NONE
    usage: Usage = Usage()
    #: The latest attempts, oldest first.
    attempts: tuple[AttemptTimes, ...] = ()
    #: The job's parts; None for a job that one worker computes.
    parts: Parts | None = None
    #: Public state of a job whose state is OTHER; None for any other job.
    shown: Status | None = None
    #: Number of upstreams in the longest chain up to the job.
    depth: int = 0
    #: Ids of the jobs that name this one in `after`; only of a job that was read alone.
    followers: tuple[str, ...] = ()
    #: Revision; it increases with every change of the record.
    revision: int = 0
    #: Position among the tenant's own jobs in the queue, 1 = next; None unless queued.
    queue_position: int | None = None
    #: Estimated seconds until the job ends; None if unknown.
    eta_s: float | None = None
    #: Reason why no worker can currently run the job; None unless the job waits.
    model_problem: str | None = None

    @property
    def key(self) -> JobKey:
        """The job's full name."""
        return self.submission.key

    @property
    def has_output(self) -> bool:
        """True if the job has a text or data, wherever they are."""
        return not (self.text is None and self.data is None and self.output is None)

    @property
    def in_parts(self) -> bool:
        """True while the job's parts do its work."""
        return self.state is State.DELAYED and self.parts is not None and self.parts.ended < self.parts.number

    @property
    def status(self) -> Status:
        """The public state."""
        if self.shown is not None:
            return self.shown
        if self.state is State.RUNNING or self.in_parts:
            return Status.CANCELING if self.cancel_requested else Status.RUNNING
        return _STATUS[self.state]


@dataclass(frozen=True, slots=True)
class Claim:
    """A job leased to a slot. Every write of this attempt carries the fence."""

    submission: Submission
    attempt: int
    crashes: int
    fence: int
    #: Start and end of the lease by Redis' clock, in seconds.
    claimed_s: float
    lease_s: float
    #: True if the next crash fails the job: then it runs with no other job beside it.
    last_chance: bool = False
    #: Hosts of the web addresses in the request: the job may fetch its media there.
    fetch_hosts: tuple[str, ...] = ()
    #: True if further jobs waited in the queue at the time of the claim.
    more: bool = False
    #: The part of a job that was claimed; None for a whole job.
    part: Part | None = None
    #: Parts that the job was split into before; 0 = it never was.
    parts: int = 0
    #: True if the job has manifests in the object store.
    durable: bool = False
    #: True if Redis has started anew since the jobs were compared with the object store: the job may have ended before.
    may_be_old: bool = False
    #: Artifacts of the job's upstreams, by the id of the upstream.
    upstreams: Mapping[str, tuple[Artifact, ...]] = field(default_factory=dict)

    @property
    def log_ids(self) -> dict[str, str]:
        """The ids in log lines about the attempt: those of the job, its `model`, and `part` of a part."""
        own = {"model": self.submission.model} | ({} if self.part is None else {"part": self.key.id})
        return self.submission.log_ids | {"job": str(self.job)} | own

    @property
    def job(self) -> JobKey:
        """The name of the job whose work the attempt does: that of a part is another than `key`."""
        return self.key if self.part is None else self.part.parent

    @property
    def key(self) -> JobKey:
        """The job's full name."""
        return self.submission.key

    @property
    def prefix(self) -> str:
        """The prefix of this attempt's artifacts in the store."""
        return f"{self.key.prefix}attempts/{self.fence}/"


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An entry of a job's event stream, sent by SSE and printed by `penstock trace`."""

    #: Id in the stream, `<milliseconds>-<n>`; the value of `Last-Event-ID`.
    id: str
    #: `job.recovered` (restored from its manifest), `job.created`, `job.started`, `job.progress`, `job.text`,
    #: `job.preview`, `job.retrying`, `job.requeued`, `job.released`, `job.split`, `job.part_ended`,
    #: `job.cancel_requested`, `job.succeeded`, `job.failed`, `job.canceled`, `job.expired`, `delivery.*`.
    type: str
    at_s: float
    data: Mapping[str, Any]
