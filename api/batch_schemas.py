"""Batches over the wire: requests as outsiders write them, and batches as they read them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from penstock.api.schemas import ArtifactView, NameOf, Outgoing, artifact_view, moment
from penstock.batches import Batch, BatchStatus
from penstock.models import MAX_NAME_CHARS
from penstock.requests import DAY_S, Incoming, MetadataKey, MetadataValue

#: Of an inline batch; longer ones come as a file.
MAX_INLINE = 1000
DEFAULT_TTL_S = DAY_S


class BatchRequest(Incoming):
    """Many jobs to run: `requests`, or a `file` that holds them."""

    requests: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_INLINE)] | None = Field(
        default=None,
        description="Requests as POST /v1/jobs takes them, each with a `custom_id` if you like.",
        examples=[[{"custom_id": "a", "model": "csmask", "input": {"scene": "s3://scenes/a.tif"}}]],
    )
    file: Annotated[str, StringConstraints(min_length=1, max_length=2048)] | None = Field(
        default=None,
        description="A JSONL file with a request to a line: an upload (`media://`) or an object (`s3://`).",
    )
    model: Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME_CHARS)] | None = Field(
        default=None, description="Of requests that name none."
    )
    priority: Literal["low", "normal", "high"] = Field(
        default="low", description="Of requests that name none. Low: jobs that come alone go before."
    )
    ttl: Annotated[float, Field(ge=1, le=30 * DAY_S)] = Field(
        default=DEFAULT_TTL_S,
        description="Seconds until what is not over is ended (`expired`); what succeeded before is kept.",
    )
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=50)] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _from_one_place(self) -> Self:
        if (self.requests is None) == (self.file is None):
            raise ValueError("name either requests or a file")
        return self


class BatchQuery(BaseModel):
    """Which batches a list is to hold."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cursor: Annotated[str, StringConstraints(pattern=r"^[0-9]{1,20}$")] | None = None
    limit: Annotated[int, Field(ge=1, le=200)] = 50


class CountsView(Outgoing):
    """How many of a batch's requests stand where: the parts add up to `total`."""

    total: int
    queued: int = Field(description="Waiting, as a job or to become one.")
    running: int
    succeeded: int
    failed: int
    canceled: int
    expired: int
    invalid: int = Field(description="Lines that cannot be jobs; `errors.jsonl` says why.")


class BatchLinksView(Outgoing):
    """Where to go from a batch."""

    self: str
    jobs: str
    cancel: str


class BatchView(Outgoing):
    """A batch."""

    id: str
    object: Literal["batch"] = "batch"
    tenant: str
    status: BatchStatus
    counts: CountsView
    expanded: int = Field(description="How many requests had their turn to become jobs; the rest waits for room.")
    model: str | None
    priority: Literal["low", "normal", "high"]
    idempotency_key: str | None
    created_at: datetime
    deadline_at: datetime = Field(description="Then what is not over is ended.")
    completed_at: datetime | None
    expires_at: datetime | None = Field(description="From then on the batch is gone (410), and its results with it.")
    artifacts: list[ArtifactView] = Field(
        description="`results.jsonl` and `errors.jsonl` when the batch is over: a line for each of its requests."
    )
    metadata: dict[str, str]
    links: BatchLinksView


class BatchList(Outgoing):
    """Some batches, newest first. Pass `next_cursor` as `cursor` to go on; null at the end."""

    batches: list[BatchView]
    next_cursor: str | None


def batch_view(batch: Batch, *, base_url: str, uri: NameOf) -> BatchView:
    """Return the batch as the public sees it."""
    here, wanted, end = f"{base_url}/v1/batches/{batch.key.id}", batch.manifest, batch.end
    return BatchView(
        id=batch.key.id,
        tenant=batch.key.tenant,
        status=batch.status,
        counts=CountsView.model_validate(batch.counts, from_attributes=True),
        expanded=batch.cursor.requests,
        model=wanted.model,
        priority=wanted.priority,
        idempotency_key=wanted.idempotency_key,
        created_at=moment(wanted.created_us / 1e6),
        deadline_at=moment(wanted.deadline_s),
        completed_at=None if end is None else moment(end.completed_s),
        expires_at=None if batch.expires_s is None else moment(batch.expires_s),
        artifacts=[] if end is None else [artifact_view(file, batch.key.id, here, uri) for file in end.artifacts],
        metadata=dict(wanted.metadata),
        links=BatchLinksView(self=here, jobs=f"{base_url}/v1/jobs?batch_id={batch.key.id}", cancel=f"{here}/cancel"),
    )
