"""The API's answers as values: jobs, artifacts, events, models, problems.

Unknown fields are ignored, so an older client reads a newer service.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

from penstock.batches import BatchStatus, Counts
from penstock.client.decoding import at, read
from penstock.client.notebook import batch_card, card
from penstock.errors import ErrorReport, Issue, with_places
from penstock.jobs import Progress, Status
from penstock.views import View

#: Statuses that are retryable where the body is no problem+json.
_RETRYABLE = frozenset({429, 502, 503, 504})


class ClientError(Exception):
    """The client or its caller made a mistake: the base of the client's errors."""

    code = "client_error"


class Unreachable(ClientError):
    """The service does not answer. `address` is its address where no connection succeeded, and else None."""

    code = "unreachable"

    def __init__(self, sentence: str, *, address: str | None = None) -> None:
        self.address = address
        super().__init__(sentence)


class Corrupt(ClientError):
    """A download does not match the size or SHA-256 in the job."""

    code = "corrupt"


class PenstockAPIError(ClientError):
    """The service rejected a request: `code`, `title`, `detail`, `status`, `errors` (RFC 9457) and `retryable`."""

    def __init__(self, problem: Mapping[str, Any], *, status: int, retry_after_s: float | None = None) -> None:
        #: The problem document as the service sent it.
        self.problem = problem
        self.status = status
        self.code = str(problem.get("code", f"http_{status}"))
        self.title = str(problem.get("title", f"HTTP {status}"))
        self.detail = str(problem.get("detail", self.title))
        self.retryable = bool(problem.get("retryable", status in _RETRYABLE))
        issues = problem.get("errors")
        self.errors = tuple(
            Issue(str(issue.get("pointer", "")), str(issue.get("detail", "")))
            for issue in (issues if isinstance(issues, list) else ())
        )
        self.retry_after_s = retry_after_s
        super().__init__(with_places(self.detail, self.errors))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer. `raw` is the service's whole answer, with the fields that this client does not know."""

    raw: Mapping[str, Any] = field(repr=False, compare=False, metadata=at(""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A finished file of a job's result."""

    name: str
    content_type: str = "application/octet-stream"
    size_bytes: int
    sha256: str
    url: str = ""
    uri: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output(Answer):
    """The output of a job, or the error where it has none."""

    text: str | None = field(default=None, metadata=at("output.text"))
    data: Mapping[str, Any] | None = field(default=None, metadata=at("output.json"))
    artifacts: tuple[Artifact, ...] = ()
    error: ErrorReport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A phase of an attempt; `ended_at` is None while it lasts."""

    phase: str
    started_at: datetime
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt of a job. `outcome` is None while it runs."""

    number: int
    fence: str = ""
    worker: str = ""
    started_at: datetime
    ended_at: datetime | None = None
    outcome: str | None = None
    phases: tuple[Phase, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Output):
    """A job."""

    id: str
    model: str
    status: Status
    phase: str | None = None
    attempt: int = 0
    progress: Progress = field(default_factory=Progress)
    queue_position: int | None = None
    eta_s: float | None = field(default=None, metadata=at("eta_seconds"))
    #: The reason why no worker can run the model now, for a queued job.
    model_problem: str | None = None
    created_at: datetime
    started_at: datetime | None = None
    completed_at: datetime | None = None
    input: Mapping[str, Any] = field(default_factory=dict)
    #: Bytes of a large output as JSON; lists leave its text and data out, and `Client.job` returns them.
    output_bytes: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    delivery: str = "none"
    #: Ids of the jobs that must succeed first.
    after: tuple[str, ...] = ()
    #: Ids of the jobs that wait or waited for this one; None in lists and from an older service.
    followers: tuple[str, ...] | None = None
    #: The latest attempts, oldest first; empty from a service that does not tell them.
    attempts: tuple[Attempt, ...] = ()
    #: The model, software, machine and inputs that made the result; None in lists and from an older service.
    provenance: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def over(self) -> bool:
        """True once the job has ended, with or without a result."""
        return self.status.terminal

    @property
    def waits_because(self) -> str:
        """The reason why the job waits for its model; empty where there is none."""
        return waits_because(self.model_problem)

    @property
    def succeeded(self) -> bool:
        """True where the job has a result."""
        return self.status is Status.SUCCEEDED

    def _repr_html_(self) -> str:
        """Return the job as a notebook shows it."""
        return card(self)


class StillRunning(ClientError, TimeoutError):
    """A job did not end within the timeout and goes on. `job` is its latest state."""

    code = "still_running"

    def __init__(self, job: Job, waited_s: float) -> None:
        self.job = job
        why = f": {job.waits_because}" if job.model_problem else ""
        super().__init__(f"job {job.id} is {job.status.value} after {waited_s:g} s; it goes on{why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line that a job's processor or runner logged or printed."""

    at: datetime
    attempt: int
    #: `processor` or `runner`.
    source: str
    level: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLog(Answer):
    """The lines of a job, the oldest first, and the number of those that were left out."""

    lines: tuple[Line, ...]
    cut: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a job. A stream begins with `snapshot`: the job itself, without an id."""

    id: str = ""
    type: str = ""
    at: datetime | None = None
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def final(self) -> bool:
        """True for the event that ended the job."""
        _, _, name = self.type.partition("job.")
        return name in set(Status) and Status(name).terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo(Answer):
    """A model of the service's catalogue; `problem` is the reason why it is unusable, or None."""

    name: str
    title: str = ""
    description: str = ""
    revision: str = ""
    queue: str = "default"
    input_schema: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None
    #: True once a worker has warmed the model up; jobs are accepted before.
    ready: bool = True
    #: The forms in which people read the JSON of its answers; empty from an older service.
    views: tuple[View, ...] = ()

    def __post_init__(self) -> None:
        if not self.title:
            object.__setattr__(self, "title", self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue(Answer):
    """A queue's depth and speed."""

    name: str
    queued: int = 0
    running: int = 0
    workers: int = 0
    oldest_age_s: float = 0
    eta_s: float | None = None
    #: `open`, `paused` or `draining`.
    mode: str = "open"
    dead_letters: int = 0
    #: Recently succeeded jobs per second.
    throughput_per_s: float = 0
    #: Jobs that the queue's workers run at once, at most.
    slots: int = 0
    #: Workers that the queue wants now.
    wanted_workers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker(Answer):
    """A worker by its latest heartbeat."""

    id: str
    host: str = ""
    #: `serving` or `draining`.
    state: str = "serving"
    queues: tuple[str, ...] = ()
    slots: int = 0
    running: int = 0
    device: str = ""
    started_at: datetime

    @property
    def models(self) -> Mapping[str, int | None]:
        """The models that it serves: name -> prompts of the latest batch, None before the first."""
        return {model["name"]: model.get("batch_size") for model in self.raw.get("models") or ()}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLine:
    """A log line of a worker."""

    at: datetime
    level: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One attempt of a webhook delivery. `status` is the receiver's HTTP status, None without an answer."""

    number: int
    at: datetime
    status: int | None = None
    note: str = ""
    #: None where no request was sent.
    latency_ms: float | None = None
    #: The beginning of the receiver's answer.
    answer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookDelivery(Answer):
    """The delivery of one event to a receiver: `state` is `pending`, `delivered` or `failed`."""

    id: str
    event: str
    url: str
    state: str
    created_at: datetime
    log: tuple[Try, ...] = ()
    #: Only of a pending delivery; None where unknown.
    next_attempt_at: datetime | None = None
    #: The event's job, and the endpoint of the delivery; each None where there is none.
    job: str | None = None
    endpoint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookEndpoint(Answer):
    """A URL that gets the events of all a tenant's jobs. `secret` is present only after its creation or rotation."""

    id: str
    url: str
    events: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    description: str = ""
    format: str = "webhook"
    enabled: bool = True
    disabled_reason: str | None = None
    created_at: datetime
    secret: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryPage:
    """A page of deliveries, the latest first; `next_cursor` is None on the last page."""

    deliveries: tuple[WebhookDelivery, ...] = ()
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page of jobs, the newest first; `next_cursor` is None on the last page."""

    jobs: tuple[Job, ...]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(Answer):
    """A batch of requests. The parts of `counts` add up to its `total`."""

    id: str
    status: BatchStatus
    counts: Counts
    #: Requests that were expanded into jobs, or rejected, so far.
    expanded: int = 0
    created_at: datetime
    deadline_at: datetime
    completed_at: datetime | None = None
    #: `results.jsonl` and `errors.jsonl`, once the batch is over.
    artifacts: tuple[Artifact, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """True once the batch has ended, with or without results."""
        return self.status.terminal

    def _repr_html_(self) -> str:
        """Return the batch as a notebook shows it."""
        return batch_card(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPage:
    """A page of batches, the newest first; `next_cursor` is None on the last page."""

    batches: tuple[Batch, ...]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LineOutcome(Output):
    """The outcome of a line of a batch. `error` is None for a success, `job_id` for a line that never became a job."""

    line: int
    custom_id: str | None = None
    job_id: str | None = None
    #: `succeeded`, `failed`, `canceled`, `expired` or `invalid`.
    status: str

    @property
    def succeeded(self) -> bool:
        """True where the line has a result."""
        return self.error is None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSums:
    """Sums over jobs that ended."""

    #: `succeeded`, `failed`, `canceled`, `expired` -> number of jobs.
    jobs: Mapping[str, int] = field(default_factory=dict)
    device_s: float = field(metadata=at("device_seconds"))
    bytes_in: int = 0
    bytes_out: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    pixels: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageDay:
    """The sums of one tenant, model and day (UTC)."""

    tenant: str
    model: str
    day: date
    sums: UsageSums = field(metadata=at(""))


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageReport(Answer):
    """Usage from the day `first` to the day `last`."""

    first: date = field(metadata=at("from"))
    last: date = field(metadata=at("to"))
    rows: tuple[UsageDay, ...] = ()
    total: UsageSums


def waits_because(model_problem: str | None) -> str:
    """Return the reason why a job with this `model_problem` waits; empty where there is none."""
    return f"it cannot run at the moment: {model_problem}" if model_problem else ""


def read_sse(kind: str, text: str) -> Event | None:
    """Read a server-sent event: a job for `snapshot`, otherwise an entry as in the list; None for any other shape.

    A keep-alive comment arrives as an event without text.
    """
    try:
        found = json.loads(text)
        event = Event("", kind, None, found) if kind == "snapshot" else read(Event, {"type": kind, **found})
    except (ValueError, TypeError):
        return None
    return event if isinstance(event.data, Mapping) else None
