"""What a job's request looks like, however it comes in: alone, or as a line of a batch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from penstock.jobs import Webhook
from penstock.models import MAX_NAME_CHARS

DAY_S = 86_400
PRIORITIES = {"low": -1, "normal": 0, "high": 1}

WebhookEvent = Literal[
    "job.queued", "job.started", "job.progress", "job.succeeded", "job.failed", "job.canceled", "job.expired"
]
MetadataKey = Annotated[str, StringConstraints(min_length=1, max_length=64)]
MetadataValue = Annotated[str, StringConstraints(max_length=512)]


class Incoming(BaseModel):
    """A request's body: exact types, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class WebhookRequest(Incoming):
    """Where the job's events are sent; by default its end, whichever it is."""

    #: Where to.
    url: Annotated[str, StringConstraints(min_length=1, max_length=2048)]
    #: Which ones; by default `job.succeeded`, `job.failed`, `job.canceled` and `job.expired`.
    events: Annotated[list[WebhookEvent], Field(min_length=1)] | None = None


class JobRequest(Incoming):
    """A job to run."""

    #: A model's name or alias.
    model: Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME_CHARS)] = Field(examples=["csmask"])
    #: Validated against the model's own schema (GET /v1/models/{name}).
    input: dict[str, Any] = Field(description="What the model asks for: see its `input_schema`.")
    #: Kept with the job, told with it, and searched by: names and texts.
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=50)] = Field(default_factory=dict)
    #: Is told of the job's events.
    webhook: WebhookRequest | None = None
    #: Before or behind other jobs of the queue.
    priority: Literal["low", "normal", "high"] = "normal"
    queue_ttl: Annotated[float, Field(gt=0, le=30 * DAY_S)] | None = Field(
        default=None, description="Seconds that the job may wait before it expires; looked at once a second."
    )
    execution_timeout: Annotated[float, Field(ge=1, le=7 * DAY_S)] | None = Field(
        default=None,
        description="Seconds that an attempt of the job may run before the job fails; looked at once a second.",
    )

    def webhook_value(self) -> Webhook | None:
        """Return the webhook as the job keeps it."""
        if self.webhook is None:
            return None
        if self.webhook.events is None:
            return Webhook(self.webhook.url)
        return Webhook(self.webhook.url, tuple(self.webhook.events))


class LineRequest(JobRequest):
    """A line of a batch: a job to run, and what the client calls it."""

    custom_id: Annotated[str, StringConstraints(max_length=256)] | None = Field(
        default=None, description="Comes back with the line's outcome. Need not be unique: `line` is."
    )
