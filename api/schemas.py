"""What goes over the wire: requests as outsiders write them, and jobs as they read them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from penstock.jobs import Delivery, Job, JobEvent, Phase, QueueMode, Status, Webhook
from penstock.models import CatalogueEntry
from penstock.storage.deliveries import DeliveryRecord
from penstock.storage.queues import QueueStats

DAY_S = 86_400
PRIORITIES = {"low": -1, "normal": 0, "high": 1}

WebhookEvent = Literal["job.queued", "job.started", "job.succeeded", "job.failed", "job.canceled", "job.expired"]
MetadataKey = Annotated[str, StringConstraints(min_length=1, max_length=64)]
MetadataValue = Annotated[str, StringConstraints(max_length=512)]


class Incoming(BaseModel):
    """A request's body: exact types, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class WebhookRequest(Incoming):
    """Where the job's events are sent; by default its end, whichever it is."""

    url: Annotated[str, StringConstraints(min_length=1, max_length=2048)]
    events: Annotated[list[WebhookEvent], Field(min_length=1)] | None = None


class JobRequest(Incoming):
    """A job to run."""

    model: Annotated[str, StringConstraints(min_length=1, max_length=64)] = Field(examples=["csmask"])
    #: Validated against the model's own schema (GET /v1/models/{name}).
    input: dict[str, Any] = Field(description="What the model asks for: see its `input_schema`.")
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=50)] = Field(default_factory=dict)
    webhook: WebhookRequest | None = None
    priority: Literal["low", "normal", "high"] = "normal"
    queue_ttl: Annotated[float, Field(gt=0, le=30 * DAY_S)] | None = Field(
        default=None, description="Seconds that the job may wait before it expires."
    )
    execution_timeout: Annotated[float, Field(gt=0, le=7 * DAY_S)] | None = Field(
        default=None, description="Seconds that the job may run before it fails."
    )

    def webhook_value(self) -> Webhook | None:
        """Return the webhook as the job keeps it."""
        if self.webhook is None:
            return None
        if self.webhook.events is None:
            return Webhook(self.webhook.url)
        return Webhook(self.webhook.url, tuple(self.webhook.events))


class UploadRequest(Incoming):
    """A file that is about to be sent."""

    filename: Annotated[str, StringConstraints(min_length=1, max_length=1024)]
    content_type: Annotated[
        str, StringConstraints(max_length=255, pattern=r"^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+$")
    ] = "application/octet-stream"
    size_bytes: Annotated[int, Field(gt=0)]


class Outgoing(BaseModel):
    """A part of an answer. Times are ISO 8601 in UTC."""

    model_config = ConfigDict(frozen=True)


class UploadView(Outgoing):
    """Send the file as `method` `url` with exactly these `headers`, then name `media` in a job's input."""

    id: str
    media: str
    method: str
    url: str
    headers: dict[str, str]
    expires_at: datetime


class ProgressView(Outgoing):
    """How far the running attempt is."""

    done: int
    total: int | None
    unit: str
    message: str | None


class IssueView(Outgoing):
    """One thing wrong, and where."""

    pointer: str
    detail: str


class ErrorView(Outgoing):
    """Why a job failed: the same object as the core of a problem+json body."""

    code: str
    title: str
    detail: str
    retryable: bool
    errors: list[IssueView]


class Problem(ErrorView):
    """What every refusal and failure of the API looks like (RFC 9457). `errors` point into the request's body."""

    type: str
    status: int


class OutputView(Outgoing):
    """A job's immediate output."""

    text: str | None
    data: dict[str, Any] | None = Field(serialization_alias="json")


class ArtifactView(Outgoing):
    """A finished file of the result. `url` stays the same and leads to the bytes."""

    name: str
    content_type: str
    size_bytes: int
    sha256: str
    uri: str
    url: str
    #: The API's own link does not end before the job's `expires_at`.
    url_expires_at: datetime | None


class LinksView(Outgoing):
    """Where to go from a job."""

    self: str
    events: str
    cancel: str
    deliveries: str


class JobView(Outgoing):
    """A job."""

    id: str
    object: Literal["job"] = "job"
    model: str
    status: Status
    phase: Phase | None
    attempt: int
    max_attempts: int
    queue_position: int | None
    eta_seconds: float | None
    progress: ProgressView
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    expires_at: datetime | None
    input: dict[str, Any]
    output: OutputView | None
    artifacts: list[ArtifactView]
    error: ErrorView | None
    metrics: dict[str, float]
    metadata: dict[str, str]
    delivery: Delivery
    retry_of: str | None
    links: LinksView


class JobList(Outgoing):
    """Some jobs, newest first. Pass `next_cursor` as `cursor` to go on; null at the end."""

    jobs: list[JobView]
    next_cursor: str | None


class EventView(Outgoing):
    """Something that happened to a job."""

    id: str
    type: str
    at: datetime
    data: dict[str, Any]


class EventList(Outgoing):
    """What happened to a job, oldest first."""

    events: list[EventView]


class TryView(Outgoing):
    """One try of a delivery. `status` is the receiver's HTTP status, null where there was none."""

    number: int
    at: datetime
    status: int | None
    note: str


class DeliveryView(Outgoing):
    """A webhook delivery: one event to one receiver. `id` is its `webhook-id`."""

    id: str
    event: str
    url: str
    state: Delivery
    created_at: datetime
    tries: int
    log: list[TryView]


class DeliveryList(Outgoing):
    """A job's webhook deliveries."""

    deliveries: list[DeliveryView]


class ModelList(Outgoing):
    """The models, by name."""

    models: list[CatalogueEntry]


class QueueView(Outgoing):
    """A queue's depth and speed: the signal for autoscaling."""

    name: str
    queued: int
    running: int
    oldest_age_s: float
    throughput_per_s: float
    workers: int
    slots: int
    eta_s: float | None
    #: `paused`: no job is given to workers; `draining`: no job is accepted.
    mode: QueueMode
    #: Jobs that failed because their workers died too often, and that nobody retried.
    dead_letters: int


class Purged(Outgoing):
    """How many waiting jobs were canceled, and whether more wait."""

    canceled: int
    more: bool


class DeadLetters(Outgoing):
    """Jobs whose workers died too often, newest first."""

    jobs: list[JobView]


class Requeued(Outgoing):
    """The new jobs, and whether more dead letters are there."""

    jobs: list[JobView]
    more: bool


def job_view(job: Job, *, base_url: str, uri: Callable[[str], str]) -> JobView:
    """Return the job as the public sees it. `uri` names an object of the store."""
    here = f"{base_url}/v1/jobs/{job.key.id}"
    wanted = job.submission
    return JobView(
        id=job.key.id,
        model=wanted.model,
        status=job.status,
        phase=None if job.status.terminal else job.phase,
        attempt=job.attempt,
        max_attempts=wanted.max_attempts,
        queue_position=job.queue_position,
        eta_seconds=job.eta_s,
        progress=ProgressView.model_validate(job.progress, from_attributes=True),
        created_at=moment(job.created_s),
        started_at=_maybe(job.started_s),
        completed_at=_maybe(job.completed_s),
        expires_at=_maybe(job.expires_s),
        input=dict(wanted.input),
        output=_output(job),
        artifacts=_artifacts(job, here, uri),
        error=ErrorView.model_validate(job.error.to_json()) if job.error else None,
        metrics=_metrics(job),
        metadata=dict(wanted.metadata),
        delivery=job.delivery,
        retry_of=wanted.retry_of,
        links=LinksView(self=here, events=f"{here}/events", cancel=f"{here}/cancel", deliveries=f"{here}/deliveries"),
    )


def event_view(event: JobEvent) -> EventView:
    """Return the event as the public sees it."""
    return EventView(id=event.id, type=event.type, at=moment(event.at_s), data=dict(event.data))


def delivery_view(row: DeliveryRecord) -> DeliveryView:
    """Return the delivery as the public sees it."""
    tries = [TryView(number=t.number, at=moment(t.at_s), status=t.status, note=t.note) for t in row.log]
    created = moment(row.created_s)
    return DeliveryView(
        id=row.id, event=row.event, url=row.url, state=row.state, created_at=created, tries=row.tries, log=tries
    )


def queue_view(name: str, stats: QueueStats) -> QueueView:
    """Return the queue as the public sees it."""
    return QueueView(
        name=name,
        queued=stats.queued,
        running=stats.running,
        oldest_age_s=stats.oldest_age_s,
        throughput_per_s=stats.throughput_per_s,
        workers=stats.workers,
        slots=stats.slots,
        eta_s=stats.eta_s,
        mode=stats.mode,
        dead_letters=stats.dead_letters,
    )


def moment(seconds: float) -> datetime:
    """Return seconds since the epoch as a time in UTC."""
    return datetime.fromtimestamp(seconds, UTC)


def _maybe(seconds: float | None) -> datetime | None:
    return None if seconds is None else moment(seconds)


def _metrics(job: Job) -> dict[str, float]:
    """Return the latest attempt's milliseconds, before them its wait since the job was made."""
    waited = {} if job.started_s is None else {"queue_ms": round((job.started_s - job.created_s) * 1000, 1)}
    return waited | dict(job.metrics)


def _output(job: Job) -> OutputView | None:
    if job.text is None and job.data is None:
        return None
    return OutputView(text=job.text, data=None if job.data is None else dict(job.data))


def _artifacts(job: Job, here: str, uri: Callable[[str], str]) -> list[ArtifactView]:
    return [
        ArtifactView(
            name=artifact.name,
            content_type=artifact.content_type,
            size_bytes=artifact.size_bytes,
            sha256=artifact.sha256,
            uri=uri(artifact.key),
            url=f"{here}/artifacts/{quote(artifact.name)}",
            url_expires_at=None,
        )
        for artifact in job.artifacts
    ]
