"""The request for a job, sent alone or as a line of a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from penstock.jobs import Priority, Webhook
from penstock.models import MAX_NAME_CHARS

DAY_S = 86_400
#: Jobs that a job may wait for.
MAX_UPSTREAMS = 20
PRIORITIES = {"low": -1, "normal": 0, "high": 1}

WebhookEvent = Literal[
    "job.queued", "job.started", "job.progress", "job.succeeded", "job.failed", "job.canceled", "job.expired"
]
JobId = Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$")]
MetadataKey = Annotated[str, StringConstraints(min_length=1, max_length=64)]
MetadataValue = Annotated[str, StringConstraints(max_length=512)]


class Incoming(BaseModel):
    """A request's body: exact types, unknown keys rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class WebhookRequest(Incoming):
    """The receiver of the job's events; by default it receives the job's end."""

    #: Address of the receiver.
    url: Annotated[str, StringConstraints(min_length=1, max_length=2048)]
    #: Events to send; by default `job.succeeded`, `job.failed`, `job.canceled` and `job.expired`.
    events: Annotated[list[WebhookEvent], Field(min_length=1)] | None = None


class JobRequest(Incoming):
    """A job to run."""

    #: Name or alias of the model.
    model: Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME_CHARS)] = Field(examples=["csmask"])
    #: Input, validated against the model's own schema (GET /v1/models/{name}).
    input: dict[str, Any] = Field(description="The model's input: see its `input_schema`.")
    #: Names and texts of your choice, stored and returned with the job; jobs can be searched by them.
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=50)] = Field(default_factory=dict)
    #: Receiver of the job's events.
    webhook: WebhookRequest | None = None
    after: Annotated[list[JobId], Field(max_length=MAX_UPSTREAMS)] = Field(
        default_factory=list,
        description="Ids of jobs of yours that must succeed first. A job waits for the jobs whose artifacts its input "
        "names (`job://ID/NAME`) as well. It ends with `upstream_failed` where one does not succeed.",
    )
    #: Priority over other jobs of the queue.
    priority: Priority = "normal"
    queue_ttl: Annotated[float, Field(gt=0, le=30 * DAY_S)] | None = Field(
        default=None, description="Seconds that the job may wait before it expires; checked once a second."
    )
    execution_timeout: Annotated[float, Field(ge=1, le=7 * DAY_S)] | None = Field(
        default=None,
        description="Seconds that an attempt of the job may run before the job fails; checked once a second.",
    )

    def webhook_value(self) -> Webhook | None:
        """Return the webhook as a value of the job."""
        if self.webhook is None:
            return None
        if self.webhook.events is None:
            return Webhook(self.webhook.url)
        return Webhook(self.webhook.url, tuple(self.webhook.events))


class LineRequest(JobRequest):
    """A line of a batch: a job to run, and the client's name for the line."""

    custom_id: Annotated[str, StringConstraints(max_length=256)] | None = Field(
        default=None, description="Returned with the line's outcome. It need not be unique: `line` is."
    )


def is_file(text: str) -> bool:
    """Return True if a text names a local file. A text too long for a file name does not."""
    try:
        return Path(text).is_file()
    except OSError:
        return False
