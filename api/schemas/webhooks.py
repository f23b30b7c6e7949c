"""Schemas of webhook endpoints and their deliveries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AliasPath, BeforeValidator, Field, StringConstraints

from penstock.api.schemas.jobs import Outgoing, Time, utc_time
from penstock.jobs import Delivery, Webhook
from penstock.requests import Incoming, WebhookEvent
from penstock.storage.journal.endpoints import Endpoint, EndpointKey, Secret

MAX_OVERLAP_S = 7 * 86_400

Url = Annotated[str, StringConstraints(min_length=1, max_length=2048)]
Events = Annotated[list[WebhookEvent], Field(min_length=1, max_length=20)]
Models = Annotated[list[Annotated[str, StringConstraints(min_length=1, max_length=64)]], Field(max_length=100)]
#: `webhook`: `type`, `timestamp`, `data`. `cloudevents`: CloudEvents 1.0, structured, in JSON.
Format = Literal["webhook", "cloudevents"]
Description = Annotated[str, StringConstraints(max_length=500)]


class EndpointRequest(Incoming):
    """A webhook endpoint to create. By default it receives the end of each job, successful or not."""

    url: Url = Field(
        examples=["https://example.org/hooks/penstock"],
        description="An http(s) URL, or the ARN of an SNS topic or SQS queue that the operator allows.",
    )
    events: Events = Field(default_factory=lambda: list(Webhook("").events))  # type: ignore[arg-type]  # a table's values
    models: Models = Field(
        default_factory=list,
        description="Only events of jobs of these models; empty for all. An alias is returned as the model's name.",
    )
    description: Description = ""
    format: Format = "webhook"
    enabled: bool = True

    def value(self, key: EndpointKey, *, fingerprint: str) -> Endpoint:
        """Return the endpoint without secret and times, which storing adds."""
        lists = {"events": _unique(self.events), "models": _unique(self.models)}
        more = {name: getattr(self, name) for name in ("description", "format", "enabled")}
        more["fingerprint"] = fingerprint
        return Endpoint(key, self.url, (), 0, 0, **lists, **more)  # type: ignore[arg-type]


class EndpointChange(Incoming):
    """The fields to change; omitted fields are unchanged."""

    url: Url | None = None
    events: Events | None = None
    models: Models | None = None
    description: Description | None = None
    format: Format | None = None
    enabled: bool | None = None

    def changes(self) -> Mapping[str, Any]:
        """Return the given fields in the types of an `Endpoint`."""
        given = self.model_dump(exclude_none=True)
        return {name: _unique(value) if isinstance(value, list) else value for name, value in given.items()}


class RotateRequest(Incoming):
    """Seconds during which old secrets also sign; by default `webhook_secret_overlap_s` of the settings."""

    overlap_s: Annotated[int, Field(ge=0, le=MAX_OVERLAP_S)] | None = None


def _last_end(secrets: Sequence[Secret]) -> datetime | None:
    ends = [secret.until_s for secret in secrets if secret.until_s is not None]
    return utc_time(max(ends)) if ends else None


class EndpointView(Outgoing):
    """A webhook endpoint."""

    id: str = Field(validation_alias=AliasPath("key", "id"))
    object: Literal["webhook_endpoint"] = "webhook_endpoint"
    url: str
    events: list[str]
    models: list[str]
    description: str
    format: str
    enabled: bool
    disabled_reason: str | None = Field(description="The reason where the service disabled the endpoint itself.")
    created_at: Time = Field(validation_alias="created_s")
    #: Time at which the last old secret stops signing; null where only one secret signs.
    old_secrets_until: Annotated[datetime | None, BeforeValidator(_last_end)] = Field(validation_alias="secrets")


class EndpointSecretView(EndpointView):
    """A webhook endpoint with its secret, returned only on creation and rotation."""

    secret: str


class EndpointList(Outgoing):
    """A tenant's webhook endpoints, oldest first."""

    endpoints: list[EndpointView]


class TryView(Outgoing):
    """One try of a delivery. `status` is the receiver's HTTP status; null without a response."""

    number: int
    at: Time = Field(validation_alias="at_s")
    status: int | None
    note: str
    latency_ms: float | None = Field(description="Null where no request was sent.")
    answer: str = Field(description="The beginning of the receiver's response.")


class DeliveryView(Outgoing):
    """A webhook delivery: one event to one receiver. `id` is its `webhook-id`."""

    id: str
    job: Annotated[str | None, BeforeValidator(lambda job_id: job_id or None)] = Field(
        validation_alias=AliasPath("key", "id"), description="The job's id; null for an event without a job."
    )
    endpoint: str | None = Field(description="The endpoint's id; null for a webhook from the job's request.")
    event: str
    url: str
    state: Delivery
    created_at: Time = Field(validation_alias="created_s")
    tries: int
    next_attempt_at: Time | None = Field(
        validation_alias="due_s", description="Null after the last try, and during a try."
    )
    log: list[TryView]


class DeliveryList(Outgoing):
    """A job's webhook deliveries."""

    deliveries: list[DeliveryView]


class DeliveryPageView(Outgoing):
    """A page of deliveries, newest first. Pass `next_cursor` as `cursor` for the next page; null on the last."""

    deliveries: list[DeliveryView]
    next_cursor: str | None


class DeadDeliveries(Outgoing):
    """Permanently failed deliveries, newest first; `more` is true where the list has more."""

    deliveries: list[DeliveryView]
    more: bool


class RedeliveryView(Outgoing):
    """The number of deliveries sent again; `more` is true where failed ones remain."""

    deliveries: int
    more: bool


def _unique(values: list[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(values))
