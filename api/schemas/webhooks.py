"""Schemas of webhook endpoints and their deliveries."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from penstock.api.schemas.jobs import DeliveryView, Outgoing, delivery_view, utc_time
from penstock.jobs import Webhook
from penstock.requests import Incoming, WebhookEvent
from penstock.storage.journal.endpoints import Endpoint, EndpointKey
from penstock.storage.redis.deliveries import DeliveryPage, DeliveryRecord

MAX_OVERLAP_S = 7 * 86_400

Url = Annotated[str, StringConstraints(min_length=1, max_length=2048)]
Events = Annotated[list[WebhookEvent], Field(min_length=1, max_length=20)]
Models = Annotated[list[Annotated[str, StringConstraints(min_length=1, max_length=64)]], Field(max_length=100)]
Description = Annotated[str, StringConstraints(max_length=500)]


class EndpointRequest(Incoming):
    """A webhook endpoint to create. By default it receives the end of each job, successful or not."""

    url: Url = Field(examples=["https://example.org/hooks/penstock"])
    events: Events = Field(default_factory=lambda: list(Webhook("").events))  # type: ignore[arg-type]  # a table's values
    models: Models = Field(
        default_factory=list,
        description="Only events of jobs of these models; empty for all. An alias is returned as the model's name.",
    )
    description: Description = ""
    enabled: bool = True

    def value(self, key: EndpointKey, *, fingerprint: str) -> Endpoint:
        """Return the endpoint without secret and times, which storing adds."""
        lists = {"events": _unique(self.events), "models": _unique(self.models)}
        more = {"description": self.description, "enabled": self.enabled, "fingerprint": fingerprint}
        return Endpoint(key, self.url, (), 0, 0, **lists, **more)  # type: ignore[arg-type]


class EndpointChange(Incoming):
    """The fields to change; omitted fields are unchanged."""

    url: Url | None = None
    events: Events | None = None
    models: Models | None = None
    description: Description | None = None
    enabled: bool | None = None

    def changes(self) -> Mapping[str, Any]:
        """Return the given fields in the types of an `Endpoint`."""
        given = self.model_dump(exclude_none=True)
        return {name: _unique(value) if isinstance(value, list) else value for name, value in given.items()}


class RotateRequest(Incoming):
    """Seconds during which old secrets also sign; by default `webhook_secret_overlap_s` of the settings."""

    overlap_s: Annotated[int, Field(ge=0, le=MAX_OVERLAP_S)] | None = None


class EndpointView(Outgoing):
    """A webhook endpoint."""

    id: str
    object: Literal["webhook_endpoint"] = "webhook_endpoint"
    url: str
    events: list[str]
    models: list[str]
    description: str
    enabled: bool
    disabled_reason: str | None = Field(description="The reason where the service disabled the endpoint itself.")
    created_at: datetime
    #: Time at which the last old secret stops signing; null where only one secret signs.
    old_secrets_until: datetime | None


class EndpointSecretView(EndpointView):
    """A webhook endpoint with its secret, returned only on creation and rotation."""

    secret: str


class EndpointList(Outgoing):
    """A tenant's webhook endpoints, oldest first."""

    endpoints: list[EndpointView]


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


def endpoint_view(endpoint: Endpoint) -> EndpointView:
    """Return the public view of an endpoint."""
    return EndpointView(**_fields(endpoint))


def endpoint_secret_view(endpoint: Endpoint) -> EndpointSecretView:
    """Return the public view of an endpoint with its secret."""
    return EndpointSecretView(**_fields(endpoint), secret=endpoint.secret)


def delivery_page_view(page: DeliveryPage) -> DeliveryPageView:
    """Return the public view of a page of deliveries."""
    return DeliveryPageView(deliveries=list(map(delivery_view, page.deliveries)), next_cursor=page.next_cursor)


def dead_deliveries_view(rows: tuple[DeliveryRecord, ...], *, more: bool) -> DeadDeliveries:
    """Return the public view of failed deliveries."""
    return DeadDeliveries(deliveries=list(map(delivery_view, rows)), more=more)


def _fields(endpoint: Endpoint) -> dict[str, Any]:
    ends = [secret.until_s for secret in endpoint.secrets if secret.until_s is not None]
    return {
        "id": endpoint.key.id,
        "url": endpoint.url,
        "events": list(endpoint.events),
        "models": list(endpoint.models),
        "description": endpoint.description,
        "enabled": endpoint.enabled,
        "disabled_reason": endpoint.disabled_reason,
        "created_at": utc_time(endpoint.created_s),
        "old_secrets_until": utc_time(max(ends)) if ends else None,
    }


def _unique(values: list[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(values))
