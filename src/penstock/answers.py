"""The API's answers as values: jobs, artifacts, events, models, problems. Unknown fields are ignored.

So an older client reads a newer service.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from penstock.jobs import Progress, Status
from penstock.reports import ErrorReport, Issue, with_places

#: Answers that another try may change, where no problem+json says it better.
_PASSING = frozenset({429, 502, 503, 504})


class ClientError(Exception):
    """Base of what a client raises."""


class Unreachable(ClientError):
    """The service does not answer."""


class Corrupt(ClientError):
    """A download does not have the bytes that the job names."""


class PenstockAPIError(ClientError):
    """The service refused: RFC 9457 `code`, `title`, `detail`, `status`, `errors` and whether to retry."""

    def __init__(self, problem: Mapping[str, Any], *, status: int, retry_after_s: float | None = None) -> None:
        self.status = status
        self.code = str(problem.get("code", f"http_{status}"))
        self.title = str(problem.get("title", f"HTTP {status}"))
        self.detail = str(problem.get("detail", self.title))
        self.retryable = bool(problem.get("retryable", status in _PASSING))
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
class Job:
    """A job as the service told of it. `raw` is the whole answer."""

    id: str
    model: str
    status: Status
    phase: str | None
    attempt: int
    progress: Progress
    queue_position: int | None
    eta_s: float | None
    #: Why no worker can run its model at the moment, of a job that waits for one.
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
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def over(self) -> bool:
        """Whether the job has ended, whichever way."""
        return self.status.terminal

    @property
    def waits_because(self) -> str:
        """Say what is wrong with its model while it waits, empty where nothing is known to be."""
        return waits_because(self.model_problem)

    @property
    def succeeded(self) -> bool:
        """Whether its result is there."""
        return self.status is Status.SUCCEEDED


class StillRunning(ClientError, TimeoutError):
    """The time to wait for a job is over and the job is not: it goes on. `job` is what it was last."""

    def __init__(self, job: Job, waited_s: float) -> None:
        self.job = job
        why = f": {job.waits_because}" if job.model_problem else ""
        super().__init__(f"job {job.id} is {job.status.value} after {waited_s:g} s; it goes on{why}")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a job. The first of a stream is `snapshot`, the job itself, without an id."""

    id: str
    type: str
    at: datetime | None
    data: Mapping[str, Any]

    @property
    def final(self) -> bool:
        """Whether the job ended with it."""
        _, _, name = self.type.partition("job.")
        return name in set(Status) and Status(name).terminal


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model of the service's catalogue; `problem` says why it cannot be used, if it cannot."""

    name: str
    title: str
    description: str
    revision: str
    queue: str
    input_schema: Mapping[str, Any]
    problem: str | None
    #: Whether a worker is warmed up; jobs are accepted all the same.
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
    #: Jobs that succeeded lately, per second.
    throughput_per_s: float
    #: How many jobs its workers run at a time.
    slots: int
    raw: Mapping[str, Any] = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker as it described itself lately. `models` are names -> the prompts of the latest batch, None before it."""

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
    """One try of a webhook delivery. `status` is the receiver's HTTP status, None where there was none."""

    number: int
    at: datetime
    status: int | None
    note: str
    #: None where the receiver was not asked.
    latency_ms: float | None = None
    #: The beginning of what the receiver answered.
    answer: str = ""


@dataclass(frozen=True, slots=True)
class WebhookDelivery:
    """One event of a job on its way to a receiver: `state` is `pending`, `delivered` or `failed`."""

    id: str
    event: str
    url: str
    state: str
    created_at: datetime
    log: tuple[Try, ...]
    #: Of a pending one, where the service tells it.
    next_attempt_at: datetime | None
    raw: Mapping[str, Any] = field(repr=False, compare=False)
    #: The job that the event is of, and the endpoint that asked for it, where there is one.
    job: str | None = None
    endpoint: str | None = None


@dataclass(frozen=True, slots=True)
class WebhookEndpoint:
    """Where a tenant is told of all its jobs. `secret` is there when it was just made or replaced, and not again."""

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
    """Some deliveries, the latest first; `next_cursor` is None at the end."""

    deliveries: tuple[WebhookDelivery, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Page:
    """Some jobs, newest first; `next_cursor` is None at the end."""

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
        started_at=_moment(data.get("started_at")),
        completed_at=_moment(data.get("completed_at")),
        input=data.get("input") or {},
        text=output.get("text"),
        data=output.get("json"),
        artifacts=tuple(read_artifact(a) for a in _list(data, "artifacts")),
        error=read_error(error) if error else None,
        metrics=data.get("metrics") or {},
        metadata=data.get("metadata") or {},
        delivery=str(data.get("delivery") or "none"),
        raw=data,
    )


def waits_because(model_problem: str | None) -> str:
    """Say why a job with this `model_problem` waits, nothing where there is none."""
    return f"its model cannot be used at the moment: {model_problem}" if model_problem else ""


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
    log = map(_try, _list(data, "log"))
    return WebhookDelivery(
        id=data["id"],
        event=data["event"],
        url=data["url"],
        state=data["state"],
        created_at=datetime.fromisoformat(data["created_at"]),
        log=tuple(log),
        next_attempt_at=_moment(data.get("next_attempt_at")),
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
    """Read an entry of an event list."""
    return Event(data.get("id") or "", data["type"], _moment(data.get("at")), data.get("data") or {})


def read_sse(kind: str, text: str) -> Event | None:
    """Read a server-sent event: a job under `snapshot`, otherwise as in the list; None for any other shape.

    A comment that keeps the connection alive arrives as an event without text.
    """
    try:
        found = json.loads(text)
        event = Event("", kind, None, found) if kind == "snapshot" else read_event({"type": kind, **found})
    except (ValueError, TypeError):
        return None
    return event if isinstance(event.data, Mapping) else None


def media_fields(schema: Mapping[str, Any]) -> dict[str, bool]:
    """Return the fields of a model's input that take media, and for each whether it takes several."""
    found: dict[str, bool] = {}
    for name, part in schema.get("properties", {}).items():
        for shape in shapes(schema, part):
            if shape.get("format") == "media":
                found[name] = False
            elif any(item.get("format") == "media" for item in shapes(schema, shape.get("items") or {})):
                found[name] = True
    return found


def shapes(root: Mapping[str, Any], part: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and the alternatives in it, `$ref`s to `root` resolved."""
    if "$ref" in part:
        part = root["$defs"][part["$ref"].removeprefix("#/$defs/")]
    yield part
    for union in ("anyOf", "oneOf", "allOf"):
        for inner in part.get(union, ()):
            yield from shapes(root, inner)


def _try(data: Mapping[str, Any]) -> Try:
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
    """Read what is told of an error."""
    problem = PenstockAPIError(data, status=0)
    return ErrorReport(problem.code, problem.title, problem.detail, problem.retryable, problem.errors)


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _list(data: Mapping[str, Any], name: str) -> list[Any]:
    found = data.get(name)
    return found if isinstance(found, list) else []
