"""The API's answers as values: jobs, artifacts, events, models, problems.

Unknown fields are ignored, so an older client reads a newer service.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from penstock.client.notebook import card
from penstock.jobs import Progress, Status
from penstock.reports import ErrorReport, Issue, with_places

#: Statuses that are retryable where the body is no problem+json.
_RETRYABLE = frozenset({429, 502, 503, 504})


class ClientError(Exception):
    """The base of the client's errors."""


class Unreachable(ClientError):
    """The service does not answer. `address` is its address where no connection succeeded, and else None."""

    def __init__(self, sentence: str, *, address: str | None = None) -> None:
        self.address = address
        super().__init__(sentence)


class Corrupt(ClientError):
    """A download does not match the size or SHA-256 in the job."""


class PenstockAPIError(ClientError):
    """The service rejected a request: `code`, `title`, `detail`, `status`, `errors` (RFC 9457) and `retryable`."""

    def __init__(self, problem: Mapping[str, Any], *, status: int, retry_after_s: float | None = None) -> None:
        self.status = status
        self.code = str(problem.get("code", f"http_{status}"))
        self.title = str(problem.get("title", f"HTTP {status}"))
        self.detail = str(problem.get("detail", self.title))
        self.retryable = bool(problem.get("retryable", status in _RETRYABLE))
        self.errors = tuple(
            Issue(str(e.get("pointer", "")), str(e.get("detail", ""))) for e in _list(problem, "errors")
        )
        self.retry_after_s = retry_after_s
        super().__init__(with_places(self.detail, self.errors))


@dataclass(frozen=True, slots=True)
class Artifact:
    """A finished file of a job's result."""

    name: str
    content_type: str
    size_bytes: int
    sha256: str
    url: str = ""
    uri: str = ""


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of an attempt; `ended_at` is None while it lasts."""

    phase: str
    started_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt of a job. `outcome` is None while it runs."""

    number: int
    fence: str
    worker: str
    started_at: datetime
    ended_at: datetime | None
    outcome: str | None
    phases: tuple[Phase, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """A job. `raw` is the service's whole answer."""

    id: str
    model: str
    status: Status
    phase: str | None
    attempt: int
    progress: Progress
    queue_position: int | None
    eta_s: float | None
    #: The reason why no worker can run the model now, for a queued job.
    model_problem: str | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    input: Mapping[str, Any]
    text: str | None
    data: Mapping[str, Any] | None
    artifacts: tuple[Artifact, ...]
    error: ErrorReport | None
    metrics: Mapping[str, float]
    metadata: Mapping[str, str]
    delivery: str
    #: The latest attempts, oldest first; empty from a service that does not tell them.
    attempts: tuple[Attempt, ...]
    raw: Mapping[str, Any] = field(repr=False, compare=False)
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

    def __init__(self, job: Job, waited_s: float) -> None:
        self.job = job
        why = f": {job.waits_because}" if job.model_problem else ""
        super().__init__(f"job {job.id} is {job.status.value} after {waited_s:g} s; it goes on{why}")


@dataclass(frozen=True, slots=True)
class Line:
    """A line that a job's processor or runner logged or printed."""

    at: datetime
    attempt: int
    #: `processor` or `runner`.
    source: str
    level: str
    text: str


@dataclass(frozen=True, slots=True)
class JobLog:
    """The lines of a job, the oldest first, and the number of those that were left out."""

    lines: tuple[Line, ...]
    cut: int
    raw: Mapping[str, Any] = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a job. A stream begins with `snapshot`: the job itself, without an id."""

    id: str
    type: str
    at: datetime | None
    data: Mapping[str, Any]

    @property
    def final(self) -> bool:
        """True for the event that ended the job."""
        _, _, name = self.type.partition("job.")
        return name in set(Status) and Status(name).terminal


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model of the service's catalogue; `problem` is the reason why it is unusable, or None."""

    name: str
    title: str
    description: str
    revision: str
    queue: str
    input_schema: Mapping[str, Any]
    problem: str | None
    #: True once a worker has warmed the model up; jobs are accepted before.
    ready: bool
    raw: Mapping[str, Any] = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue's depth and speed."""

    name: str
    queued: int
    running: int
    workers: int
    oldest_age_s: float
    eta_s: float | None
    #: `open`, `paused` or `draining`.
    mode: str
    dead_letters: int
    #: Recently succeeded jobs per second.
    throughput_per_s: float
    #: Jobs that the queue's workers run at once, at most.
    slots: int
    #: Workers that the queue wants now.
    wanted_workers: int
    raw: Mapping[str, Any] = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker by its latest heartbeat. `models`: name -> prompts of the latest batch, None before the first."""

    id: str
    host: str
    #: `serving` or `draining`.
    state: str
    queues: tuple[str, ...]
    slots: int
    running: int
    device: str
    models: Mapping[str, int | None]
    started_at: datetime
    raw: Mapping[str, Any] = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Try:
    """One attempt of a webhook delivery. `status` is the receiver's HTTP status, None without an answer."""

    number: int
    at: datetime
    status: int | None
    note: str
    #: None where no request was sent.
    latency_ms: float | None = None
    #: The beginning of the receiver's answer.
    answer: str = ""


@dataclass(frozen=True, slots=True)
class WebhookDelivery:
    """The delivery of one event to a receiver: `state` is `pending`, `delivered` or `failed`."""

    id: str
    event: str
    url: str
    state: str
    created_at: datetime
    log: tuple[Try, ...]
    #: Only of a pending delivery; None where unknown.
    next_attempt_at: datetime | None
    raw: Mapping[str, Any] = field(repr=False, compare=False)
    #: The event's job, and the endpoint of the delivery; each None where there is none.
    job: str | None = None
    endpoint: str | None = None


@dataclass(frozen=True, slots=True)
class WebhookEndpoint:
    """A URL that gets the events of all a tenant's jobs. `secret` is present only after its creation or rotation."""

    id: str
    url: str
    events: tuple[str, ...]
    models: tuple[str, ...]
    description: str
    enabled: bool
    disabled_reason: str | None
    created_at: datetime
    secret: str | None = field(repr=False)
    raw: Mapping[str, Any] = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class DeliveryPage:
    """A page of deliveries, the latest first; `next_cursor` is None on the last page."""

    deliveries: tuple[WebhookDelivery, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Page:
    """A page of jobs, the newest first; `next_cursor` is None on the last page."""

    jobs: tuple[Job, ...]
    next_cursor: str | None


def read_job(data: Mapping[str, Any]) -> Job:
    """Read a job from the API's JSON."""
    output, progress, error = data.get("output") or {}, data.get("progress") or {}, data.get("error")
    return Job(
        id=data["id"],
        model=data["model"],
        status=Status(data["status"]),
        phase=data.get("phase"),
        attempt=int(data.get("attempt") or 0),
        progress=Progress(
            int(progress.get("done") or 0),
            progress.get("total"),
            progress.get("unit") or "prompts",
            progress.get("message"),
        ),
        queue_position=data.get("queue_position"),
        eta_s=data.get("eta_seconds"),
        model_problem=data.get("model_problem"),
        created_at=datetime.fromisoformat(data["created_at"]),
        started_at=_time(data.get("started_at")),
        completed_at=_time(data.get("completed_at")),
        input=data.get("input") or {},
        text=output.get("text"),
        data=output.get("json"),
        artifacts=tuple(read_artifact(a) for a in _list(data, "artifacts")),
        error=read_error(error) if error else None,
        metrics=data.get("metrics") or {},
        metadata=data.get("metadata") or {},
        delivery=str(data.get("delivery") or "none"),
        attempts=tuple(_attempt(each) for each in _list(data, "attempts")),
        raw=data,
        provenance=data.get("provenance"),
    )


def _attempt(data: Mapping[str, Any]) -> Attempt:
    phases = tuple(
        Phase(str(each["phase"]), datetime.fromisoformat(each["started_at"]), _time(each.get("ended_at")))
        for each in _list(data, "phases")
    )
    return Attempt(
        number=int(data["number"]),
        fence=str(data.get("fence", "")),
        worker=str(data.get("worker", "")),
        started_at=datetime.fromisoformat(data["started_at"]),
        ended_at=_time(data.get("ended_at")),
        outcome=data.get("outcome"),
        phases=phases,
    )


def read_log(data: Mapping[str, Any]) -> JobLog:
    """Read the lines of a job."""
    lines = tuple(
        Line(datetime.fromisoformat(line["at"]), int(line["attempt"]), line["source"], line["level"], str(line["text"]))
        for line in _list(data, "lines")
    )
    return JobLog(lines, int(data.get("cut") or 0), data)


def waits_because(model_problem: str | None) -> str:
    """Return the reason why a job with this `model_problem` waits; empty where there is none."""
    return f"it cannot run at the moment: {model_problem}" if model_problem else ""


def read_page(data: Mapping[str, Any]) -> Page:
    """Read a page of jobs."""
    return Page(tuple(read_job(job) for job in _list(data, "jobs")), data.get("next_cursor"))


def read_model(data: Mapping[str, Any]) -> ModelInfo:
    """Read a model of the catalogue."""
    return ModelInfo(
        name=data["name"],
        title=data.get("title") or data["name"],
        description=data.get("description") or "",
        revision=str(data.get("revision") or ""),
        queue=data.get("queue") or "default",
        input_schema=data.get("input_schema") or {},
        problem=data.get("problem"),
        ready=bool(data.get("ready", True)),
        raw=data,
    )


def read_queue(data: Mapping[str, Any]) -> Queue:
    """Read a queue's state."""
    return Queue(
        name=data["name"],
        queued=int(data.get("queued") or 0),
        running=int(data.get("running") or 0),
        workers=int(data.get("workers") or 0),
        oldest_age_s=float(data.get("oldest_age_s") or 0),
        eta_s=data.get("eta_s"),
        mode=str(data.get("mode") or "open"),
        dead_letters=int(data.get("dead_letters") or 0),
        throughput_per_s=float(data.get("throughput_per_s") or 0),
        slots=int(data.get("slots") or 0),
        wanted_workers=int(data.get("wanted_workers") or 0),
        raw=data,
    )


def read_worker(data: Mapping[str, Any]) -> Worker:
    """Read a worker's state."""
    return Worker(
        id=data["id"],
        host=str(data.get("host") or ""),
        state=str(data.get("state") or "serving"),
        queues=tuple(_list(data, "queues")),
        slots=int(data.get("slots") or 0),
        running=int(data.get("running") or 0),
        device=str(data.get("device") or ""),
        models={model["name"]: model.get("batch_size") for model in _list(data, "models")},
        started_at=datetime.fromisoformat(data["started_at"]),
        raw=data,
    )


def read_delivery(data: Mapping[str, Any]) -> WebhookDelivery:
    """Read a webhook delivery."""
    log = map(_read_try, _list(data, "log"))
    return WebhookDelivery(
        id=data["id"],
        event=data["event"],
        url=data["url"],
        state=data["state"],
        created_at=datetime.fromisoformat(data["created_at"]),
        log=tuple(log),
        next_attempt_at=_time(data.get("next_attempt_at")),
        raw=data,
        job=data.get("job"),
        endpoint=data.get("endpoint"),
    )


def read_delivery_page(data: Mapping[str, Any]) -> DeliveryPage:
    """Read a page of deliveries."""
    return DeliveryPage(tuple(map(read_delivery, _list(data, "deliveries"))), data.get("next_cursor"))


def read_endpoint(data: Mapping[str, Any]) -> WebhookEndpoint:
    """Read a webhook endpoint."""
    return WebhookEndpoint(
        id=data["id"],
        url=data["url"],
        events=tuple(_list(data, "events")),
        models=tuple(_list(data, "models")),
        description=data.get("description") or "",
        enabled=bool(data.get("enabled", True)),
        disabled_reason=data.get("disabled_reason"),
        created_at=datetime.fromisoformat(data["created_at"]),
        secret=data.get("secret"),
        raw=data,
    )


def read_event(data: Mapping[str, Any]) -> Event:
    """Read an entry of a list of events."""
    return Event(data.get("id") or "", data["type"], _time(data.get("at")), data.get("data") or {})


def read_sse(kind: str, text: str) -> Event | None:
    """Read a server-sent event: a job for `snapshot`, otherwise an entry as in the list; None for any other shape.

    A keep-alive comment arrives as an event without text.
    """
    try:
        found = json.loads(text)
        event = Event("", kind, None, found) if kind == "snapshot" else read_event({"type": kind, **found})
    except (ValueError, TypeError):
        return None
    return event if isinstance(event.data, Mapping) else None


def media_fields(schema: Mapping[str, Any]) -> dict[str, bool]:
    """Return the media fields of a model's input: name -> True where the field is a list."""
    found: dict[str, bool] = {}
    for name, part in schema.get("properties", {}).items():
        for shape in shapes(schema, part):
            if shape.get("format") == "media":
                found[name] = False
            elif any(item.get("format") == "media" for item in shapes(schema, shape.get("items") or {})):
                found[name] = True
    return found


def shapes(root: Mapping[str, Any], part: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and its alternatives, with each `$ref` into `root` resolved."""
    if "$ref" in part:
        part = root["$defs"][part["$ref"].removeprefix("#/$defs/")]
    yield part
    for union in ("anyOf", "oneOf", "allOf"):
        for inner in part.get(union, ()):
            yield from shapes(root, inner)


def _read_try(data: Mapping[str, Any]) -> Try:
    return Try(
        number=int(data["number"]),
        at=datetime.fromisoformat(data["at"]),
        status=data.get("status"),
        note=data.get("note") or "",
        latency_ms=data.get("latency_ms"),
        answer=data.get("answer") or "",
    )


def read_artifact(data: Mapping[str, Any]) -> Artifact:
    """Read an artifact of a job or batch."""
    return Artifact(
        name=data["name"],
        content_type=data.get("content_type") or "application/octet-stream",
        size_bytes=int(data["size_bytes"]),
        sha256=data["sha256"],
        url=data.get("url") or "",
        uri=data.get("uri") or "",
    )


def read_error(data: Mapping[str, Any]) -> ErrorReport:
    """Read the error of a job or of a batch's line."""
    problem = PenstockAPIError(data, status=0)
    return ErrorReport(problem.code, problem.title, problem.detail, problem.retryable, problem.errors)


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _list(data: Mapping[str, Any], name: str) -> list[Any]:
    found = data.get(name)
    return found if isinstance(found, list) else []
