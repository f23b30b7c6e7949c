"""Schemas of batches."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from penstock.api.schemas.jobs import ArtifactView, Outgoing, Time, UriOf, artifact_view
from penstock.batches import Batch, BatchStatus
from penstock.jobs import Priority
from penstock.models import MAX_NAME_CHARS
from penstock.requests import DAY_S, Incoming, MetadataKey, MetadataValue

#: Requests of an inline batch; a file may have more.
MAX_INLINE = 1000
DEFAULT_TTL_S = DAY_S


class BatchWebhook(Incoming):
    """The receiver of a batch's end: `batch.completed`, `batch.canceled` or `batch.expired`."""

    #: Address of the receiver.
    url: Annotated[str, StringConstraints(min_length=1, max_length=2048)]


class BatchRequest(Incoming):
    """A batch to submit: inline `requests`, or a `file` of requests."""

    requests: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_INLINE)] | None = Field(
        default=None,
        description="Requests in the format of POST /v1/jobs, each with an optional `custom_id`.",
        examples=[[{"custom_id": "a", "model": "csmask", "input": {"scene": "s3://scenes/a.tif"}}]],
    )
    file: Annotated[str, StringConstraints(min_length=1, max_length=2048)] | None = Field(
        default=None,
        description="A JSONL file with one request per line: an upload (`media://`) or an object (`s3://`).",
    )
    model: Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME_CHARS)] | None = Field(
        default=None, description="Model of requests that name none."
    )
    priority: Priority = Field(
        default="low", description="Priority of requests that name none. `low`: jobs submitted on their own run first."
    )
    ttl: Annotated[float, Field(ge=1, le=30 * DAY_S)] = Field(
        default=DEFAULT_TTL_S,
        description="Seconds until unfinished requests are ended (`expired`). Results of finished requests are kept.",
    )
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=50)] = Field(default_factory=dict)
    webhook: BatchWebhook | None = Field(default=None, description="Receiver of the end of the batch.")

    @model_validator(mode="after")
    def _from_one_place(self) -> Self:
        if (self.requests is None) == (self.file is None):
            raise ValueError("must have either `requests` or `file`")
        return self


class BatchQuery(BaseModel):
    """The parameters of a list of batches."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cursor: Annotated[str, StringConstraints(pattern=r"^[0-9]{1,20}$")] | None = None
    limit: Annotated[int, Field(ge=1, le=200)] = 50


class BatchCountsView(Outgoing):
    """A batch's requests by state. The states add up to `total`."""

    total: int
    queued: int = Field(description="Waiting, as a job or before one is created.")
    running: int
    succeeded: int
    failed: int
    canceled: int
    expired: int
    invalid: int = Field(description="Invalid requests; `errors.jsonl` has the reasons.")


class BatchLinksView(Outgoing):
    """Links of a batch."""

    self: str
    jobs: str
    cancel: str


class BatchView(Outgoing):
    """A batch."""

    id: str
    object: Literal["batch"] = "batch"
    tenant: str
    status: BatchStatus
    counts: BatchCountsView
    expanded: int = Field(description="Requests expanded into jobs so far, valid or not. The rest wait for room.")
    model: str | None
    priority: Priority
    idempotency_key: str | None
    created_at: Time
    deadline_at: Time = Field(description="Time at which unfinished requests are ended.")
    completed_at: Time | None
    expires_at: Time | None = Field(description="Time from which the batch and its results are deleted (410).")
    artifacts: list[ArtifactView] = Field(
        description="`results.jsonl` and `errors.jsonl` once the batch is over, with one line per request."
    )
    metadata: dict[str, str]
    links: BatchLinksView


class BatchList(Outgoing):
    """A page of batches, newest first. Pass `next_cursor` as `cursor` for the next page; null on the last."""

    batches: list[BatchView]
    next_cursor: str | None


def batch_view(batch: Batch, *, base_url: str, uri: UriOf) -> BatchView:
    """Return the public view of a batch."""
    here, wanted, end = f"{base_url}/v1/batches/{batch.key.id}", batch.manifest, batch.end
    return BatchView(
        id=batch.key.id,
        tenant=batch.key.tenant,
        status=batch.status,
        counts=batch.counts,
        expanded=batch.cursor.requests,
        model=wanted.model,
        priority=wanted.priority,
        idempotency_key=wanted.idempotency_key,
        created_at=wanted.created_us / 1e6,
        deadline_at=wanted.deadline_s,
        completed_at=None if end is None else end.completed_s,
        expires_at=batch.expires_s,
        artifacts=[] if end is None else [artifact_view(file, batch.key.id, here, uri) for file in end.artifacts],
        metadata=dict(wanted.metadata),
        links=BatchLinksView(self=here, jobs=f"{base_url}/v1/jobs?batch_id={batch.key.id}", cancel=f"{here}/cancel"),
    )
