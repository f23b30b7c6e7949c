"""Webhook endpoints and deliveries on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from penstock.api.schemas import DeliveryView, Outgoing, delivery_view, moment
from penstock.jobs import Webhook
from penstock.requests import Incoming, WebhookEvent
from penstock.storage.deliveries import DeliveryPage, DeliveryRecord
from penstock.storage.endpoints import Endpoint, EndpointKey

MAX_OVERLAP_S = 7 * 86_400

Url = Annotated[str, StringConstraints(min_length=1, max_length=2048)]
Events = Annotated[list[WebhookEvent], Field(min_length=1, max_length=20)]
Models = Annotated[list[Annotated[str, StringConstraints(min_length=1, max_length=64)]], Field(max_length=100)]
Description = Annotated[str, StringConstraints(max_length=500)]


class EndpointRequest(Incoming):
    """Where the events of all jobs are to be sent; by default their ends, whichever it is."""

    url: Url = Field(examples=["https://example.org/hooks/penstock"])
    events: Events = Field(default_factory=lambda: list(Webhook("").events))  # type: ignore[arg-type]  # a table's values
    models: Models = Field(
        default_factory=list,
        description="Only of jobs of these models (an alias is shown as its model's name); empty: of all.",
    )
    description: Description = ""
    enabled: bool = True

    def value(self, key: EndpointKey, *, fingerprint: str) -> Endpoint:
        """Return the endpoint as it is asked for; its secret and times are made when it is stored."""
        lists = {"events": _unique(self.events), "models": _unique(self.models)}
        more = {"description": self.description, "enabled": self.enabled, "fingerprint": fingerprint}
        return Endpoint(key, self.url, (), 0, 0, **lists, **more)  # type: ignore[arg-type]


class EndpointChange(Incoming):
    """What is to be different; what is left out stays as it is."""

    url: Url | None = None
    events: Events | None = None
    models: Models | None = None
    description: Description | None = None
    enabled: bool | None = None

    def changes(self) -> Mapping[str, Any]:
        """Return the fields that were given, as an endpoint holds them."""
        given = self.model_dump(exclude_none=True)
        return {name: _unique(value) if isinstance(value, list) else value for name, value in given.items()}


class RotateRequest(Incoming):
    """For how many seconds the secrets before sign beside the new one; by default as the service is set."""

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
    disabled_reason: str | None = Field(description="Why the service disabled it, where nobody asked for it.")
    created_at: datetime
    #: When the latest of the secrets that were replaced stops to sign; null where one signs.
    old_secrets_until: datetime | None


class EndpointSecretView(EndpointView):
    """A webhook endpoint with its secret, which is told when it is made and not again."""

    secret: str


class EndpointList(Outgoing):
    """A tenant's webhook endpoints, the oldest first."""

    endpoints: list[EndpointView]


class DeliveryPageView(Outgoing):
    """Some deliveries, the latest first. Pass `next_cursor` as `cursor` to go on; null at the end."""

    deliveries: list[DeliveryView]
    next_cursor: str | None


class DeadDeliveries(Outgoing):
    """Deliveries that failed for good, the latest first, and whether there are more."""

    deliveries: list[DeliveryView]
    more: bool


class Redelivered(Outgoing):
    """How many deliveries are sent again, and whether there are more that failed for good."""

    deliveries: int
    more: bool


def endpoint_view(endpoint: Endpoint) -> EndpointView:
    """Return the endpoint as the public sees it."""
    return EndpointView(**_fields(endpoint))


def endpoint_secret_view(endpoint: Endpoint) -> EndpointSecretView:
    """Return the endpoint with its secret."""
    return EndpointSecretView(**_fields(endpoint), secret=endpoint.secret)


def delivery_page_view(page: DeliveryPage) -> DeliveryPageView:
    """Return the page as the public sees it."""
    return DeliveryPageView(deliveries=list(map(delivery_view, page.deliveries)), next_cursor=page.next_cursor)


def dead_deliveries_view(rows: tuple[DeliveryRecord, ...], *, more: bool) -> DeadDeliveries:
    """Return failed deliveries as the public sees them."""
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
        "created_at": moment(endpoint.created_s),
        "old_secrets_until": moment(max(ends)) if ends else None,
    }


def _unique(values: list[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(values))
