"""The client's operations on webhook endpoints and deliveries, as flows without a connection."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, TypedDict
from urllib.parse import quote

from penstock.client import protocol
from penstock.client.answers import DeliveryPage, WebhookDelivery, WebhookEndpoint
from penstock.client.operations import Operations
from penstock.client.protocol import Flow

_ENDPOINTS = "/v1/webhook-endpoints"


class EndpointOptions(TypedDict, total=False):
    """Options of an endpoint beside its URL; None is left out."""

    events: list[str] | None
    #: Models whose jobs are reported; empty = all.
    models: list[str] | None
    description: str | None
    enabled: bool | None


def create(do: Operations, url: str, options: EndpointOptions) -> Flow[WebhookEndpoint]:
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    protocol.check_options(options, EndpointOptions)
    body = {"url": url, **_without_none(options)}
    return do.value(WebhookEndpoint, "POST", _ENDPOINTS, body=body, headers=headers)


def list_all(do: Operations) -> Flow[list[WebhookEndpoint]]:
    return do.values(WebhookEndpoint, "endpoints", _ENDPOINTS)


def read(do: Operations, endpoint_id: str) -> Flow[WebhookEndpoint]:
    return do.value(WebhookEndpoint, "GET", _endpoint(endpoint_id))


def change(do: Operations, endpoint_id: str, url: str | None, options: EndpointOptions) -> Flow[WebhookEndpoint]:
    protocol.check_options(options, EndpointOptions)
    body = _without_none({"url": url, **options})
    return do.value(WebhookEndpoint, "PATCH", _endpoint(endpoint_id), body=body)


def delete(do: Operations, endpoint_id: str) -> Flow[None]:
    yield from do.fetch("DELETE", _endpoint(endpoint_id))


def rotate(do: Operations, endpoint_id: str, overlap_s: int | None) -> Flow[WebhookEndpoint]:
    body = _without_none({"overlap_s": overlap_s})
    return do.value(WebhookEndpoint, "POST", f"{_endpoint(endpoint_id)}/rotate", body=body)


def test(do: Operations, endpoint_id: str, wait_s: float) -> Flow[WebhookDelivery]:
    sent = yield from do.value(WebhookDelivery, "POST", f"{_endpoint(endpoint_id)}/test")
    return (yield from read_one(do, sent.id, wait_s)) if wait_s else sent


def read_one(do: Operations, delivery_id: str, wait_s: float) -> Flow[WebhookDelivery]:
    query = {"wait": f"{wait_s:g}"} if wait_s else {}
    return do.value(WebhookDelivery, "GET", _delivery(delivery_id), query=query, wait_s=wait_s)


def of_endpoint(do: Operations, endpoint_id: str, limit: int, cursor: str | None) -> Flow[DeliveryPage]:
    query = _without_none({"limit": str(limit), "cursor": cursor})
    return do.value(DeliveryPage, "GET", f"{_endpoint(endpoint_id)}/deliveries", query=query)


def dead(do: Operations, endpoint_id: str | None, limit: int) -> Flow[list[WebhookDelivery]]:
    query = _without_none({"endpoint": endpoint_id, "limit": str(limit)})
    return do.values(WebhookDelivery, "deliveries", _delivery("dead-letters"), query=query)


def redeliver_dead(do: Operations, endpoint_id: str | None) -> Flow[int]:
    sent, more = 0, True
    while more:
        path = f"{_delivery('dead-letters')}/redeliver"
        answer = yield from do.fetch("POST", path, query=_without_none({"endpoint": endpoint_id}))
        sent += answer["deliveries"]
        # Deliveries of a disabled endpoint stay on the list.
        more = answer["more"] and answer["deliveries"] > 0
    return sent


def _endpoint(endpoint_id: str) -> str:
    return f"{_ENDPOINTS}/{quote(endpoint_id, safe='')}"


def _delivery(delivery_id: str) -> str:
    return f"/v1/deliveries/{protocol.segment(delivery_id)}"


def _without_none(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
