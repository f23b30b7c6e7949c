"""What goes over the wire: requests as outsiders write them, and jobs as they read them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field

from penstock.jobs import Artifact, Delivery, Job, JobEvent, Phase, Status
from penstock.models import CatalogueEntry
from penstock.storage.deliveries import DeliveryRecord

#: Names an object of the store by its key; None where nobody outside the service can read it by any name.
NameOf: TypeAlias = Callable[[str], str] | None


class Outgoing(BaseModel):
    """A part of an answer. Times are ISO 8601 in UTC."""

    model_config = ConfigDict(frozen=True)


class ProgressView(Outgoing):
    """How far the job is. It never goes backwards: a further attempt counts from where it passes the one before."""

    #: In `unit`s.
    done: int
    #: Null where it is not known beforehand.
    total: int | None
    #: What is counted, in the plural: `tiles`, `prompts`.
    unit: str
    #: What else the attempt says of it.
    message: str | None


class IssueView(Outgoing):
    """One thing wrong, and where."""

    pointer: str
    detail: str


class ErrorView(Outgoing):
    """Why a job failed: the same object as the core of a problem+json body."""

    #: For programs: see the reference of errors.
    code: str
    #: What the code means.
    title: str
    #: What it is this time.
    detail: str
    #: Whether the same request may succeed later.
    retryable: bool
    #: The places that it is about.
    errors: list[IssueView]


class Problem(ErrorView):
    """What every refusal and failure of the API looks like (RFC 9457). `errors` point into the request's body."""

    type: str
    status: int


class OutputView(Outgoing):
    """A job's immediate output."""

    #: Of models that answer with text.
    text: str | None
    #: Of models that answer with data.
    data: dict[str, Any] | None = Field(serialization_alias="json")


class ArtifactView(Outgoing):
    """A finished file of the result. `url` stays the same and leads to the bytes."""

    #: Unique within the job.
    name: str
    #: What the file is.
    content_type: str
    #: Its length.
    size_bytes: int
    #: In hexadecimal digits.
    sha256: str
    uri: str = Field(
        description="`s3://bucket/key` for tools that may read the bucket, otherwise `artifact://ID/NAME`, which is a "
        "name and no address."
    )
    #: Leads to the bytes, by a redirect where the store has links of its own.
    url: str
    #: The API's own link does not end before the job's `expires_at`.
    url_expires_at: datetime | None


class LinksView(Outgoing):
    """Where to go from a job."""

    #: The job.
    self: str
    #: What happens to it, as a stream.
    events: str
    #: POST: ask for its end.
    cancel: str
    #: Its webhooks.
    deliveries: str


class JobView(Outgoing):
    """A job."""

    #: A UUID: the service's, or the client's own of a PUT.
    id: str
    #: What this document is.
    object: Literal["job"] = "job"
    #: Whose it is.
    tenant: str
    #: The model's name, also where the request used an alias.
    model: str
    #: Where it waits, or waited.
    queue: str
    #: As it was asked for.
    priority: Literal["low", "normal", "high"]
    #: What the client called its request, if it did.
    idempotency_key: str | None
    #: The trace that it belongs to (W3C), if the request named one.
    traceparent: str | None
    #: Terminal are `succeeded`, `failed`, `canceled` and `expired`.
    status: Status
    #: What a live job is doing; null when it is over.
    phase: Phase | None
    attempt: int = Field(
        description="How many attempts were begun. One that its worker gave back, because it was told to end, is begun "
        "again under its number."
    )
    #: After so many it fails, whatever the error.
    max_attempts: int
    queue_position: int | None = Field(description="1 is next. Null unless the job waits for a worker.")
    eta_seconds: float | None = Field(
        description="Until the job ends, by its progress or by how long jobs of its model take lately. Null where that "
        "cannot be told: no job of the model has succeeded yet, or the queue is paused or has no workers."
    )
    model_problem: str | None = Field(
        description="Why no worker can run the job's model at the moment: the job waits until one can, or until its "
        "`queue_ttl` is over. Null unless the job waits and there is such a problem."
    )
    #: How far it is.
    progress: ProgressView
    #: When it was accepted.
    created_at: datetime
    #: When its latest attempt began.
    started_at: datetime | None
    #: When it ended.
    completed_at: datetime | None
    expires_at: datetime | None = Field(description="From then on the job is gone (410), and its result with it.")
    #: As it was asked for.
    input: dict[str, Any]
    #: The immediate result; null until the job succeeded, and where all of it is files.
    output: OutputView | None
    #: The files of the result.
    artifacts: list[ArtifactView]
    #: Why it failed or expired, or why its last attempt did.
    error: ErrorView | None
    #: Of the latest attempt: times in milliseconds, `input_bytes`, `batches` and `batch_size`.
    metrics: dict[str, float]
    #: As it was given.
    metadata: dict[str, str]
    #: How its webhooks fare; `pending` while one is still to be delivered.
    delivery: Delivery
    #: The job that this one is a retry of.
    retry_of: str | None
    batch_id: str | None = Field(description="The batch that the job is a member of.")
    batch_line: int | None = Field(description="Its line there, from 1.")
    custom_id: str | None = Field(description="What the client calls that line.")
    #: Where to go from here.
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
    latency_ms: float | None = Field(description="Null where the receiver was not asked.")
    answer: str = Field(description="The beginning of what the receiver answered.")


class DeliveryView(Outgoing):
    """A webhook delivery: one event to one receiver. `id` is its `webhook-id`."""

    id: str
    job: str | None = Field(description="Null where the event is of no job.")
    endpoint: str | None = Field(description="Null where the job asked for it itself.")
    event: str
    url: str
    state: Delivery
    created_at: datetime
    tries: int
    next_attempt_at: datetime | None = Field(description="Null when it is settled, and while a try is under way.")
    log: list[TryView]


class DeliveryList(Outgoing):
    """A job's webhook deliveries."""

    deliveries: list[DeliveryView]


class ModelList(Outgoing):
    """The models, by name."""

    models: list[CatalogueEntry]


class Ready(Outgoing):
    """The service accepts jobs. `job_store` is the same for all APIs on one Redis, null until a keeper looked at it."""

    status: Literal["ready"] = "ready"
    job_store: str | None


def job_view(job: Job, *, base_url: str, uri: NameOf) -> JobView:
    """Return the job as the public sees it."""
    here = f"{base_url}/v1/jobs/{job.key.id}"
    wanted = job.submission
    return JobView(
        id=job.key.id,
        tenant=job.key.tenant,
        model=wanted.model,
        queue=wanted.queue,
        priority=_priority(wanted.priority),
        idempotency_key=wanted.idempotency_key,
        traceparent=wanted.traceparent,
        status=job.status,
        phase=None if job.status.terminal else job.phase,
        attempt=job.attempt,
        max_attempts=wanted.max_attempts,
        queue_position=job.queue_position,
        eta_seconds=job.eta_s,
        model_problem=job.model_problem,
        progress=ProgressView.model_validate(job.progress, from_attributes=True),
        created_at=moment(job.created_s),
        started_at=_maybe(job.started_s),
        completed_at=_maybe(job.completed_s),
        expires_at=_maybe(job.expires_s),
        input=dict(wanted.input),
        output=_output(job),
        artifacts=[artifact_view(artifact, job.key.id, here, uri) for artifact in job.artifacts],
        error=ErrorView.model_validate(job.error.to_json()) if job.error else None,
        metrics=_metrics(job),
        metadata=dict(wanted.metadata),
        delivery=job.delivery,
        retry_of=wanted.retry_of,
        batch_id=wanted.batch_id,
        batch_line=wanted.batch_line,
        custom_id=wanted.custom_id,
        links=LinksView(self=here, events=f"{here}/events", cancel=f"{here}/cancel", deliveries=f"{here}/deliveries"),
    )


def event_view(event: JobEvent) -> EventView:
    """Return the event as the public sees it."""
    return EventView(id=event.id, type=event.type, at=moment(event.at_s), data=dict(event.data))


def delivery_view(row: DeliveryRecord) -> DeliveryView:
    """Return the delivery as the public sees it."""
    tries = [
        TryView(number=t.number, at=moment(t.at_s), status=t.status, note=t.note, latency_ms=t.latency_ms,
                answer=t.answer)
        for t in row.log
    ]  # fmt: skip
    return DeliveryView(
        id=row.id,
        job=row.key.id or None,
        endpoint=row.endpoint,
        event=row.event,
        url=row.url,
        state=row.state,
        created_at=moment(row.created_s),
        tries=row.tries,
        next_attempt_at=_maybe(row.due_s),
        log=tries,
    )


def moment(seconds: float) -> datetime:
    """Return seconds since the epoch as a time in UTC."""
    return datetime.fromtimestamp(seconds, UTC)


def _maybe(seconds: float | None) -> datetime | None:
    return None if seconds is None else moment(seconds)


def _priority(head_starts: int) -> Literal["low", "normal", "high"]:
    if head_starts == 0:
        return "normal"
    return "high" if head_starts > 0 else "low"


def _metrics(job: Job) -> dict[str, float]:
    """Return the latest attempt's milliseconds, before them its wait since the job was made."""
    waited = {} if job.started_s is None else {"queue_ms": round((job.started_s - job.created_s) * 1000, 1)}
    return waited | dict(job.metrics)


def _output(job: Job) -> OutputView | None:
    if job.text is None and job.data is None:
        return None
    return OutputView(text=job.text, data=None if job.data is None else dict(job.data))


def artifact_view(artifact: Artifact, owner: str, here: str, uri: NameOf) -> ArtifactView:
    """Return a file as the public sees it; `owner` is the id of its job or batch, `here` that one's address."""
    return ArtifactView(
        name=artifact.name,
        content_type=artifact.content_type,
        size_bytes=artifact.size_bytes,
        sha256=artifact.sha256,
        uri=f"artifact://{owner}/{quote(artifact.name)}" if uri is None else uri(artifact.key),
        url=f"{here}/artifacts/{quote(artifact.name)}",
        url_expires_at=None,
    )
