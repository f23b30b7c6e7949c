"""Webhook endpoints and deliveries."""

from __future__ import annotations

import uuid
from typing import Unpack

from penstock.client.answers import DeliveryPage, WebhookDelivery, WebhookEndpoint
from penstock.client.asynchronous.service import AsyncPart
from penstock.client.connection import held
from penstock.client.options import EndpointOptions, body_of, check_options, key_header, query_of, segment

_ENDPOINTS = "/v1/webhook-endpoints"


class AsyncWebhooks(AsyncPart):
    """The methods for webhook endpoints and deliveries."""

    async def webhook_endpoints(self) -> list[WebhookEndpoint]:
        """Return the webhook endpoints, the oldest first."""
        return await self._service.values(WebhookEndpoint, "endpoints", _ENDPOINTS)

    async def webhook_endpoint(self, endpoint_id: str) -> WebhookEndpoint:
        """Return a webhook endpoint."""
        return await self._service.value(WebhookEndpoint, "GET", _endpoint(endpoint_id))

    async def create_webhook_endpoint(self, url: str, **options: Unpack[EndpointOptions]) -> WebhookEndpoint:
        """Create a webhook endpoint and return it with its `secret`, which is not shown again."""
        check_options(options, EndpointOptions)
        headers, body = key_header(uuid.uuid4().hex), {"url": url, **body_of(options)}
        return await self._service.value(WebhookEndpoint, "POST", _ENDPOINTS, headers=headers, body=body)

    async def change_webhook_endpoint(
        self, endpoint_id: str, *, url: str | None = None, **options: Unpack[EndpointOptions]
    ) -> WebhookEndpoint:
        """Change a webhook endpoint; options that are left out stay as they are."""
        check_options(options, EndpointOptions)
        body = body_of({"url": url, **options})
        return await self._service.value(WebhookEndpoint, "PATCH", _endpoint(endpoint_id), body=body)

    async def delete_webhook_endpoint(self, endpoint_id: str) -> None:
        """Delete a webhook endpoint and its pending deliveries."""
        await self._service.send("DELETE", _endpoint(endpoint_id))

    async def rotate_webhook_secret(self, endpoint_id: str, *, overlap_s: int | None = None) -> WebhookEndpoint:
        """Give an endpoint a new `secret`; the old one also signs for `overlap_s` (default: the service's setting)."""
        path, body = f"{_endpoint(endpoint_id)}/rotate", body_of({"overlap_s": overlap_s})
        return await self._service.value(WebhookEndpoint, "POST", path, body=body)

    async def test_webhook_endpoint(self, endpoint_id: str, *, wait_s: float = 20) -> WebhookDelivery:
        """Send an endpoint a `webhook.test` event and return its delivery."""
        sent = await self._service.value(WebhookDelivery, "POST", f"{_endpoint(endpoint_id)}/test")
        return await self.delivery(sent.id, wait_s=wait_s) if wait_s else sent

    async def endpoint_deliveries(
        self, endpoint_id: str, *, limit: int = 50, cursor: str | None = None
    ) -> DeliveryPage:
        """Return a page of an endpoint's deliveries, the latest first."""
        path, query = f"{_endpoint(endpoint_id)}/deliveries", query_of({"limit": limit, "cursor": cursor})
        return await self._service.value(DeliveryPage, "GET", path, query=query)

    async def delivery(self, delivery_id: str, *, wait_s: float = 0) -> WebhookDelivery:
        """Return a delivery, at once or when it is settled, after at most `wait_s` seconds (55 at most)."""
        return await self._service.value(WebhookDelivery, "GET", _delivery(delivery_id), **held(wait_s))

    async def dead_deliveries(self, *, endpoint_id: str | None = None, limit: int = 50) -> list[WebhookDelivery]:
        """Return the deliveries that failed for good, the latest first, at most `limit` (up to 500)."""
        query = query_of({"endpoint": endpoint_id, "limit": limit})
        return await self._service.values(WebhookDelivery, "deliveries", _delivery("dead-letters"), query=query)

    async def redeliver_dead(self, *, endpoint_id: str | None = None) -> int:
        """Send all deliveries that failed for good again and return their number."""
        path, query = f"{_delivery('dead-letters')}/redeliver", query_of({"endpoint": endpoint_id})
        sent, more = 0, True
        while more:
            answer = await self._service.fetch("POST", path, query=query)
            sent += answer["deliveries"]
            # Deliveries of a disabled endpoint stay on the list.
            more = answer["more"] and answer["deliveries"] > 0
        return sent


def _endpoint(endpoint_id: str) -> str:
    return f"{_ENDPOINTS}/{segment(endpoint_id)}"


def _delivery(delivery_id: str) -> str:
    return f"/v1/deliveries/{segment(delivery_id)}"
