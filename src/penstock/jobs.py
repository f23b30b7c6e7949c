"""What a job is: its states, the table of their transitions, and the values it is made of. Nothing here does I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from penstock.reports import ErrorReport


class State(StrEnum):
    """Where a job stands in the store."""

    #: Accepted by Redis, not yet by the object store: it counts, but nobody may claim it and its client waits.
    RESERVED = "reserved"
    #: Waiting for a worker.
    QUEUED = "queued"
    #: Waiting for its next try's time.
    DELAYED = "delayed"
    #: Leased to a worker.
    RUNNING = "running"
    #: Done; its result is visible.
    SUCCEEDED = "succeeded"
    #: Ended with an error.
    FAILED = "failed"
    #: Ended because somebody asked.
    CANCELED = "canceled"
    #: Waited longer than its queue TTL.
    EXPIRED = "expired"


class Event(StrEnum):
    """What can happen to a job."""

    #: The job's manifest is stored.
    CONFIRM = "confirm"
    CLAIM = "claim"
    SUCCEED = "succeed"
    FAIL = "fail"
    #: An attempt ended with a retryable error.
    RETRY = "retry"
    #: A delayed job's time has come.
    DUE = "due"
    #: A draining worker gave the job back.
    RELEASE = "release"
    #: The lease ended without a word from the worker.
    LEASE_LOST = "lease_lost"
    #: The lease was lost for the last time.
    POISON = "poison"
    #: The execution timeout passed.
    TIMEOUT = "timeout"
    #: The queue TTL passed.
    EXPIRE = "expire"
    #: Somebody asked for an end. A running job stays running until its worker saw it or its lease ended.
    CANCEL = "cancel"
    #: The worker of a canceled job saw it, or its lease ended.
    CANCELED = "canceled"


TERMINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELED, State.EXPIRED})

#: The only way from one state to another. What is not here does not happen.
TRANSITIONS: Mapping[tuple[State, Event], State] = MappingProxyType(
    {
        (State.RESERVED, Event.CONFIRM): State.QUEUED,
        (State.RESERVED, Event.CANCEL): State.CANCELED,
        (State.QUEUED, Event.CLAIM): State.RUNNING,
        (State.QUEUED, Event.CANCEL): State.CANCELED,
        (State.QUEUED, Event.EXPIRE): State.EXPIRED,
        (State.DELAYED, Event.DUE): State.QUEUED,
        (State.DELAYED, Event.CANCEL): State.CANCELED,
        (State.DELAYED, Event.EXPIRE): State.EXPIRED,
        (State.RUNNING, Event.SUCCEED): State.SUCCEEDED,
        (State.RUNNING, Event.FAIL): State.FAILED,
        (State.RUNNING, Event.RETRY): State.DELAYED,
        (State.RUNNING, Event.RELEASE): State.QUEUED,
        (State.RUNNING, Event.LEASE_LOST): State.QUEUED,
        (State.RUNNING, Event.POISON): State.FAILED,
        (State.RUNNING, Event.TIMEOUT): State.FAILED,
        (State.RUNNING, Event.CANCEL): State.RUNNING,
        (State.RUNNING, Event.CANCELED): State.CANCELED,
    }
)


def next_state(state: State, event: Event) -> State | None:
    """Return the state after the event, or None where the event changes nothing."""
    return TRANSITIONS.get((state, event))


class Status(StrEnum):
    """A job's state as the public sees it."""

    QUEUED = "queued"
    RUNNING = "running"
    CANCELING = "canceling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    EXPIRED = "expired"

    @property
    def terminal(self) -> bool:
        """Whether the job is over."""
        return self.value in TERMINAL


class Phase(StrEnum):
    """What a live job is doing."""

    WAITING = "waiting"
    LOADING = "loading"
    FETCHING = "fetching"
    PREPROCESSING = "preprocessing"
    INFERRING = "inferring"
    POSTPROCESSING = "postprocessing"
    UPLOADING = "uploading"


class QueueMode(StrEnum):
    """What a queue does."""

    OPEN = "open"
    #: Jobs are accepted and none is given to workers; what runs, runs on.
    PAUSED = "paused"
    #: No jobs are accepted; what waits is worked off.
    DRAINING = "draining"


class Delivery(StrEnum):
    """How a job's webhooks fare: an axis of its own that never changes the job's state."""

    NONE = "none"
    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class JobKey:
    """A job's full name."""

    tenant: str
    id: str

    def __str__(self) -> str:
        return f"{self.tenant}/{self.id}"

    @classmethod
    def parse(cls, text: str) -> JobKey:
        """Read what `str` wrote."""
        tenant, _, job_id = text.partition("/")
        return cls(tenant, job_id)

    @property
    def prefix(self) -> str:
        """Where the job's objects lie in the store."""
        return f"tenants/{self.tenant}/jobs/{self.id}/"

    @property
    def checkpoints(self) -> str:
        """Where what its attempts save for each other lies, until the job is terminal."""
        return f"{self.prefix}checkpoints/"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an attempt is, or a job: that of a job never goes backwards, whatever its attempts do."""

    done: int = 0
    total: int | None = None
    unit: str = "prompts"
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where a job's events are sent. The default is the four ends of a job."""

    url: str
    events: tuple[str, ...] = ("job.succeeded", "job.failed", "job.canceled", "job.expired")
    #: Where an event goes that does not go to `url`.
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
    """Return what log lines say of a valid `traceparent`."""
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
    #: What the client named its request, if it did; the job's id is made from it.
    idempotency_key: str | None = None
    #: The batch that the job is a member of, the number of its line there, and what the client calls that line.
    batch_id: str | None = None
    batch_line: int | None = None
    custom_id: str | None = None
    #: What a facade that the request came by has to remember for its answers (JSON-ready, `{"ogc": ...}`). Nothing else
    #: reads it.
    facade: Mapping[str, Any] = field(default_factory=dict)
    #: The object that it was dropped as, `storage.drop_events` knows how; the keeper is told of the job's end by it.
    drop: str | None = None

    @property
    def log_ids(self) -> dict[str, str]:
        """What log lines about the job name: `job`, and `trace_id` where its request came with a trace context."""
        return {"job": str(self.key)} | trace_of(self.traceparent)


@dataclass(frozen=True, slots=True)
class Job:
    """A job as the store holds it at one moment. Times are seconds since the epoch by Redis' clock."""

    submission: Submission
    state: State
    created_s: float
    cancel_requested: bool = False
    phase: Phase = Phase.WAITING
    attempt: int = 0
    crashes: int = 0
    fence: int = 0
    progress: Progress = Progress()
    #: What the latest attempt has done itself; `progress` may show what an earlier one had reached.
    own_done: int = 0
    #: Of the latest attempt.
    started_s: float | None = None
    completed_s: float | None = None
    #: When a delayed job is tried again.
    due_s: float | None = None
    #: When the record is purged.
    expires_s: float | None = None
    text: str | None = None
    data: Mapping[str, Any] | None = None
    artifacts: tuple[Artifact, ...] = ()
    error: ErrorReport | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    delivery: Delivery = Delivery.NONE
    #: Grows with every change of the record.
    revision: int = 0
    #: Place in the queue, 1 = next; None unless queued.
    queue_position: int | None = None
    #: Estimated seconds until the job ends; None where nothing is known.
    eta_s: float | None = None
    #: Why no worker can run its model at the moment; None unless it waits.
    model_problem: str | None = None

    @property
    def key(self) -> JobKey:
        """The job's full name."""
        return self.submission.key

    @property
    def status(self) -> Status:
        """The state as the public sees it."""
        if self.state is State.RUNNING and self.cancel_requested:
            return Status.CANCELING
        return Status.QUEUED if self.state in (State.RESERVED, State.DELAYED) else Status(self.state.value)


@dataclass(frozen=True, slots=True)
class Claim:
    """A job leased to a slot: every write about this attempt carries the fence."""

    submission: Submission
    attempt: int
    crashes: int
    fence: int
    #: Redis' clock when the lease was given and when it ends, in seconds.
    claimed_s: float
    lease_s: float
    #: Whether the next crash ends the job: then it runs with nothing beside it.
    last_chance: bool = False
    #: Whether others waited in its queue then.
    more: bool = False

    @property
    def key(self) -> JobKey:
        """The job's full name."""
        return self.submission.key

    @property
    def prefix(self) -> str:
        """Where this attempt's artifacts lie in the store."""
        return f"{self.key.prefix}attempts/{self.fence}/"


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An entry of a job's event stream: what SSE sends and `penstock trace` prints."""

    #: The stream's own id, `<milliseconds>-<n>`; what `Last-Event-ID` holds.
    id: str
    #: `job.recovered` (made anew from its manifest), `job.created`, `job.started`, `job.progress`, `job.text`,
    #: `job.preview`, `job.retrying`, `job.requeued`, `job.released`, `job.cancel_requested`, `job.succeeded`,
    #: `job.failed`, `job.canceled`, `job.expired`, `delivery.*`.
    type: str
    at_s: float
    data: Mapping[str, Any]
