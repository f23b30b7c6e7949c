"""Schemas of jobs, their events, lines and artifacts, of models, and of the answer of `/readyz`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import quote

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from penstock.api.schemas.provenance import ProvenanceView
from penstock.jobs import Artifact, Delivery, Job, Phase, Priority, Status

#: Returns the public URI of an object key; None where objects have no URI outside the service.
UriOf: TypeAlias = Callable[[str], str] | None


def utc_time(seconds: float) -> datetime:
    """Return the UTC time of seconds since the epoch."""
    return datetime.fromtimestamp(seconds, UTC)


#: A time in a response, made from seconds since the epoch.
Time = Annotated[datetime, BeforeValidator(utc_time)]


def known_source(source: str) -> str:
    """Return the source of a line; `processor` for one that a newer worker wrote and this API does not know."""
    return source if source in ("processor", "runner") else "processor"


class Outgoing(BaseModel):
    """Base class of responses, made from the attributes of records. Times are ISO 8601 in UTC."""

    model_config = ConfigDict(frozen=True, from_attributes=True)


class ProgressView(Outgoing):
    """A job's progress. It never decreases: a new attempt reports once it passes the previous attempt."""

    #: Finished units.
    done: int
    #: All units; null where the number is not known.
    total: int | None
    #: The unit, in the plural: `tiles`, `prompts`.
    unit: str
    #: A text of the attempt about its progress.
    message: str | None


class PartsView(Outgoing):
    """The parts of a job that several workers compute, of its latest split."""

    #: The number of parts.
    number: int
    #: The parts that have ended. When all have, one worker finishes the job.
    ended: int


class IssueView(Outgoing):
    """One problem and its place: a JSON pointer into the request."""

    pointer: str
    detail: str


class ErrorView(Outgoing):
    """The error of a job, with the fields of a problem+json body."""

    #: The error code; see the error reference.
    code: str
    #: The meaning of the code.
    title: str
    #: The details of this error.
    detail: str
    #: True where the same request may succeed later.
    retryable: bool
    #: The places in the request that caused the error.
    errors: list[IssueView]


class Problem(ErrorView):
    """An error response of the API (RFC 9457). `errors` point into the request body."""

    type: str
    status: int


class OutputView(Outgoing):
    """The output of a job that is no file."""

    #: The text of models that generate text.
    text: str | None
    #: The JSON of models that return data.
    data: dict[str, Any] | None = Field(serialization_alias="json")


class ArtifactView(Outgoing):
    """A file of the result. `url` is stable and returns the bytes."""

    #: The name, unique within the job.
    name: str
    #: The media type.
    content_type: str
    #: The size in bytes.
    size_bytes: int
    #: The SHA-256 in hexadecimal digits.
    sha256: str
    uri: str = Field(
        description="`s3://bucket/key` for tools with access to the bucket, otherwise `artifact://ID/NAME`, which is "
        "an identifier and no address."
    )
    #: The address of the bytes; redirects where the object store serves them.
    url: str
    #: Always null: `url` is valid until the job's `expires_at`.
    url_expires_at: Time | None


class PhaseView(Outgoing):
    """A phase of an attempt."""

    #: The phase.
    phase: Phase
    #: Time at which it began.
    started_at: Time = Field(validation_alias="started_s")
    #: Time at which the next phase began or the attempt ended; null while the phase lasts.
    ended_at: Time | None = Field(validation_alias="ended_s")


class AttemptView(Outgoing):
    """An attempt of a job, with its phases."""

    #: The attempt's number, from 1.
    number: int
    fence: Annotated[str, BeforeValidator(str)] = Field(
        description="Unique in the job. An attempt that a stopping worker gave back begins again under its number, "
        "with another fence."
    )
    #: The id of its worker.
    worker: str
    #: Time at which the attempt began.
    started_at: Time = Field(validation_alias="started_s")
    ended_at: Time | None = Field(
        validation_alias="ended_s",
        description="Null while the attempt runs; for a lost one the time it was noticed.",
    )
    outcome: str | None = Field(
        description="`succeeded`, `failed` or `canceled` for the attempt that ended the job; `retrying` after an error "
        "that a retry may solve, `released` by a stopping worker, `split` into parts, `lost` with its worker. Null "
        "while the attempt runs."
    )
    #: Its phases in order. Those of a lost attempt are as of its latest heartbeat.
    phases: list[PhaseView]


class JobLinksView(Outgoing):
    """Links of a job."""

    #: This job.
    self: str
    #: Its events, as a stream.
    events: str
    #: POST cancels the job.
    cancel: str
    #: Its webhook deliveries.
    deliveries: str
    #: The lines of its processor and runner.
    logs: str
    #: Its output as JSON; null without one.
    output: str | None


class JobView(Outgoing):
    """A job."""

    #: A UUID, chosen by the service, or by the client with PUT.
    id: str
    #: The type of this document.
    object: Literal["job"] = "job"
    #: The tenant that submitted the job.
    tenant: str
    #: The model's name, even where the request used an alias.
    model: str
    #: The queue of the job.
    queue: str
    #: The priority from the request.
    priority: Priority
    #: The request's `Idempotency-Key`; null without one.
    idempotency_key: str | None
    #: The request's W3C trace context; null without one.
    traceparent: str | None
    #: The status; `succeeded`, `failed`, `canceled` and `expired` are final.
    status: Status
    #: The current phase; null when the job is over.
    phase: Phase | None
    attempt: int = Field(
        description="Attempts begun so far. An attempt that a stopping worker gave back is begun again under the same "
        "number."
    )
    #: The number of attempts after which the job fails, whatever the error.
    max_attempts: int
    queue_position: int | None = Field(
        description="Place among the tenant's own waiting jobs of this queue, from 1. Null unless waiting for a worker."
    )
    eta_seconds: float | None = Field(
        description="Estimated seconds until the job ends, from its progress or from recent jobs of its model. Null "
        "without an estimate: no job of the model has succeeded yet, or the queue is paused or has no workers."
    )
    model_problem: str | None = Field(
        description="The reason why no worker can run the job now: a problem of its model, or a queue without a "
        "worker that has it. The job waits until a worker can, or until its `queue_ttl` ends. Null for jobs that do "
        "not wait, and without such a problem."
    )
    #: The progress.
    progress: ProgressView
    parts: PartsView | None = Field(
        description="The parts that several workers compute. Null for a job that one worker computes."
    )
    #: Time of the submission.
    created_at: Time
    #: Time at which the latest attempt began.
    started_at: Time | None
    #: Time at which the job ended.
    completed_at: Time | None
    expires_at: Time | None = Field(description="Time from which the job and its result are deleted (410).")
    #: The input from the request.
    input: dict[str, Any]
    output: OutputView | None = Field(
        description="The output that is no file; null until the job succeeds, and for jobs whose output is files only. "
        "An output beyond `inline_output_bytes` (32 kB) is only in the answer to `GET /v1/jobs/{job_id}`: elsewhere "
        "it is null, `output_bytes` has its size, and `links.output` leads to it."
    )
    #: Bytes of the output's JSON where it lies in the object store; null for a smaller one, and without one.
    output_bytes: int | None
    #: The output files.
    artifacts: list[ArtifactView]
    #: The error of the job, or of its latest failed attempt.
    error: ErrorView | None
    #: Metrics of the latest attempt: times in milliseconds, `input_bytes`, `batches` and `batch_size`.
    metrics: dict[str, float]
    provenance: ProvenanceView | None = Field(
        default=None,
        description="The model, software, machine and inputs that made the result. Only in the answer to "
        "`GET /v1/jobs/{job_id}`; null elsewhere, before the job succeeds, and for results of earlier releases.",
    )
    attempts: list[AttemptView] = Field(
        description="The latest attempts, oldest first: about 20. Empty before the first, and after a loss of Redis."
    )
    #: Ids of the jobs that must succeed first: those of the request, and those whose artifacts are inputs.
    after: list[str]
    followers: list[str] | None = Field(
        description="Ids of the jobs that wait or waited for this one. Only in the answer to `GET /v1/jobs/{job_id}`; "
        "null elsewhere.",
    )
    #: The metadata from the request.
    metadata: dict[str, str]
    #: The state of its webhook deliveries; `pending` while a delivery is outstanding.
    delivery: Delivery
    #: The id of the job that this job retries.
    retry_of: str | None
    batch_id: str | None = Field(description="The id of the job's batch.")
    batch_line: int | None = Field(description="The job's line in the batch, from 1.")
    custom_id: str | None = Field(description="The client's id of that line.")
    #: Links of the job.
    links: JobLinksView


class JobList(Outgoing):
    """A page of jobs, newest first. Pass `next_cursor` as `cursor` for the next page; null on the last."""

    jobs: list[JobView]
    next_cursor: str | None


class EventView(Outgoing):
    """An event of a job."""

    id: str
    type: str
    at: Time = Field(validation_alias="at_s")
    data: dict[str, Any]


class EventList(Outgoing):
    """The events of a job, oldest first."""

    events: list[EventView]


class ChangeView(Outgoing):
    """The answer to a question about changes: `changed` is true where a job of the tenant may have changed."""

    changed: bool


class LineView(Outgoing):
    """A line that a processor or a runner logged or printed."""

    #: Time by the worker's clock.
    at: Time = Field(validation_alias="at_s")
    #: The number of the attempt.
    attempt: int
    #: The part that said it.
    source: Annotated[Literal["processor", "runner"], BeforeValidator(known_source)]
    #: The level; prints count as `info`, those to standard error as `warning`.
    level: str
    #: The line, without secrets; of a traceback its last line.
    text: str


class LineList(Outgoing):
    """The lines of a job, the oldest first."""

    lines: list[LineView]
    #: The number of lines that were left out: of long attempts those in the middle, and of many the oldest.
    cut: int


class ReadyView(Outgoing):
    """The service accepts jobs. `job_store` identifies the Redis database; null until a keeper has run."""

    status: Literal["ready"] = "ready"
    job_store: str | None


def job_view(
    job: Job, *, base_url: str, uri: UriOf, provenance: Mapping[str, Any] | None = None,
    followers: list[str] | None = None,
) -> JobView:  # fmt: skip
    """Return the public view of a job, with its provenance and followers where these are given."""
    here, wanted = f"{base_url}/v1/jobs/{job.key.id}", job.submission
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
        progress=job.progress,
        parts=job.parts,
        created_at=job.created_s,
        started_at=job.started_s,
        completed_at=job.completed_s,
        expires_at=job.expires_s,
        input=dict(wanted.input),
        output=output_view(job),
        output_bytes=None if job.output is None else job.output.size_bytes,
        artifacts=[artifact_view(artifact, job.key.id, here, uri) for artifact in job.artifacts],
        error=job.error,
        metrics=_metrics(job),
        provenance=provenance,
        attempts=job.attempts,
        after=list(wanted.after),
        followers=followers,
        metadata=dict(wanted.metadata),
        delivery=job.delivery,
        retry_of=wanted.retry_of,
        batch_id=wanted.batch_id,
        batch_line=wanted.batch_line,
        custom_id=wanted.custom_id,
        links=JobLinksView(
            self=here,
            events=f"{here}/events",
            cancel=f"{here}/cancel",
            deliveries=f"{here}/deliveries",
            logs=f"{here}/logs",
            output=f"{here}/output" if job.has_output else None,
        ),
    )


def _priority(head_starts: int) -> Priority:
    if head_starts == 0:
        return "normal"
    return "high" if head_starts > 0 else "low"


def _metrics(job: Job) -> dict[str, float]:
    """Return the latest attempt's metrics, with `queue_ms`: the milliseconds from submission to its begin."""
    waited = {} if job.started_s is None else {"queue_ms": round((job.started_s - job.created_s) * 1000, 1)}
    return waited | dict(job.metrics)


def output_view(job: Job) -> OutputView | None:
    """Return the output of a job; None without one, and for one in the object store that was not read."""
    if job.text is None and job.data is None:
        return None
    return OutputView.model_validate(job)


def artifact_view(artifact: Artifact, owner: str, here: str, uri: UriOf) -> ArtifactView:
    """Return the public view of a file; `owner` is the id of its job or batch, `here` the URL of that resource."""
    return ArtifactView(
        name=artifact.name,
        content_type=artifact.content_type,
        size_bytes=artifact.size_bytes,
        sha256=artifact.sha256,
        uri=f"artifact://{owner}/{quote(artifact.name)}" if uri is None else uri(artifact.key),
        url=f"{here}/artifacts/{quote(artifact.name)}",
        url_expires_at=None,
    )
