"""Webhook endpoints: where a tenant is told of all its jobs."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any

import uuid_utils
from fastapi import APIRouter, Depends, Header, Query, Request, Response

from penstock.api.auth import Tenant, is_job_id
from penstock.api.body import documented, read_json
from penstock.api.errors import problems
from penstock.api.idempotency import id_from
from penstock.api.schemas import DeliveryView, delivery_view
from penstock.api.services import Api, Services
from penstock.api.webhook_schemas import (
    DeliveryPageView,
    EndpointChange,
    EndpointList,
    EndpointRequest,
    EndpointSecretView,
    EndpointView,
    RotateRequest,
    delivery_page_view,
    endpoint_secret_view,
    endpoint_view,
)
from penstock.documents import fingerprint, validated
from penstock.errors import StateConflict, UnknownEndpoint
from penstock.storage import catalogues, deliveries, endpoint_changes, endpoints
from penstock.storage.endpoints import Endpoint, EndpointKey
from penstock.storage.submissions import check_receiver, names_of

#: Of one tenant. Each is looked at whenever one of its jobs ends.
MAX_ENDPOINTS = 32
#: Endpoints' ids made from an Idempotency-Key are UUIDv5 under this and the tenant's name.
_NAMESPACE = uuid.UUID("0b1f4f3e-53f5-5c0b-8f0e-2d6a0c9b7e11")

router = APIRouter(prefix="/v1/webhook-endpoints", tags=["webhooks"], responses=problems(503))


async def _endpoint_key(endpoint_id: str, tenant: Tenant) -> EndpointKey:
    if not is_job_id(endpoint_id):
        raise UnknownEndpoint
    return EndpointKey(tenant, endpoint_id.lower())


Key = Annotated[EndpointKey, Depends(_endpoint_key)]
Limit = Annotated[int, Query(ge=1, le=200)]
Cursor = Annotated[str | None, Query(max_length=320, pattern=r"^[0-9]{1,20}-[A-Za-z0-9_.-]+$")]


@router.post(
    "",
    status_code=201,
    openapi_extra=documented(EndpointRequest),
    responses=problems(400, 408, 409, 413, 415, 422),
)
async def create_endpoint(
    request: Request,
    response: Response,
    api: Api,
    tenant: Tenant,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> EndpointSecretView:
    """Make a webhook endpoint; the answer tells its secret, and no later one does.

    With an `Idempotency-Key`, safe to repeat for a day.
    """
    body = await read_json(request, settings=api.settings)
    wanted = validated(EndpointRequest, body)
    check_receiver(wanted.url, api.settings, "/url")
    endpoint_id = str(uuid_utils.uuid7()) if idempotency_key is None else id_from(_NAMESPACE, tenant, idempotency_key)
    key = EndpointKey(tenant, endpoint_id)
    value = wanted.value(key, fingerprint=fingerprint(body))
    known = await asyncio.to_thread(endpoints.list_endpoints, api.objects, tenant)
    # A repeated request finds its endpoint, whatever there is by now.
    if key not in {endpoint.key for endpoint in known}:
        _require_room(known)
        value = replace(value, models=await _models(api, value.models))
    endpoint, created = await api.journal.run(endpoint_changes.create(value))
    response.headers["Location"] = f"{api.settings.base_url}/v1/webhook-endpoints/{key.id}"
    if not created:
        response.headers["Idempotency-Replayed"] = "true"
    return endpoint_secret_view(endpoint)


@router.get("")
async def list_endpoints(api: Api, tenant: Tenant) -> EndpointList:
    """List the webhook endpoints, the oldest first."""
    found = await asyncio.to_thread(endpoints.list_endpoints, api.objects, tenant)
    return EndpointList(endpoints=list(map(endpoint_view, found)))


@router.get("/{endpoint_id}", responses=problems(404))
async def read_endpoint(key: Key, api: Api) -> EndpointView:
    """Return a webhook endpoint."""
    return endpoint_view(await _read(api, key))


@router.patch(
    "/{endpoint_id}",
    openapi_extra=documented(EndpointChange),
    responses=problems(400, 404, 408, 413, 415, 422),
)
async def change_endpoint(key: Key, request: Request, api: Api) -> EndpointView:
    """Change a webhook endpoint. What waits to be sent goes to its new URL; disabled, it is told of nothing."""
    wanted = validated(EndpointChange, await read_json(request, settings=api.settings)).changes()
    if "url" in wanted:
        check_receiver(wanted["url"], api.settings, "/url")
    if "models" in wanted:
        kept = (await _read(api, key)).models
        wanted = {**wanted, "models": await _models(api, wanted["models"], kept)}
    return endpoint_view(await api.journal.run(endpoint_changes.change(key, _edit(wanted))))


@router.delete("/{endpoint_id}", status_code=204, responses=problems(404))
async def delete_endpoint(key: Key, api: Api) -> Response:
    """Delete a webhook endpoint; what waits to be sent to it is not sent any more."""
    await api.journal.run(endpoint_changes.delete(key))
    return Response(status_code=204)


@router.post(
    "/{endpoint_id}/rotate",
    openapi_extra={"requestBody": {**documented(RotateRequest)["requestBody"], "required": False}},
    responses=problems(400, 404, 408, 409, 413, 415, 422),
)
async def rotate_secret(key: Key, request: Request, api: Api) -> EndpointSecretView:
    """Give a webhook endpoint a new secret, which the answer tells; the one before signs beside it for a while."""
    empty = request.headers.get("content-length", "0") == "0" and "transfer-encoding" not in request.headers
    overlap_s = validated(RotateRequest, {} if empty else await read_json(request, settings=api.settings)).overlap_s
    edit = endpoint_changes.rotated(api.settings.webhook_secret_overlap_s if overlap_s is None else overlap_s)
    return endpoint_secret_view(await api.journal.run(endpoint_changes.change(key, edit)))


@router.post("/{endpoint_id}/test", status_code=202, responses=problems(404, 409))
async def test_endpoint(key: Key, response: Response, api: Api) -> DeliveryView:
    """Send a `webhook.test` event, once: `GET /v1/deliveries/{id}?wait=20` tells how it fared."""
    endpoint = await _read(api, key)
    if not endpoint.enabled:
        raise StateConflict("the endpoint is disabled: enable it first")
    name = f"msg_test_{uuid_utils.uuid7()}"
    command = deliveries.send_test(key.tenant, key.id, url=endpoint.url, delivery_id=name, body=_test_body(key))
    delivery = await api.jobs.run(command)
    response.headers["Location"] = f"{api.settings.base_url}/v1/deliveries/{delivery.id}"
    return delivery_view(delivery)


@router.get("/{endpoint_id}/deliveries", responses=problems(404, 422))
async def list_endpoint_deliveries(key: Key, api: Api, limit: Limit = 50, cursor: Cursor = None) -> DeliveryPageView:
    """List an endpoint's deliveries with each try, the latest event first."""
    await _read(api, key)
    command = deliveries.endpoint_deliveries(key.tenant, key.id, cursor=cursor, limit=limit)
    return delivery_page_view(await api.jobs.run(command))


async def _read(api: Services, key: EndpointKey) -> Endpoint:
    return await asyncio.to_thread(endpoints.read_endpoint, api.objects, key)


async def _models(api: Services, wanted: Sequence[str], kept: Sequence[str] = ()) -> tuple[str, ...]:
    if not wanted:
        return ()
    catalogue = await api.jobs.run(catalogues.catalogue())
    return names_of(wanted, catalogue, kept)


def _require_room(found: Sequence[Endpoint]) -> None:
    if len(found) >= MAX_ENDPOINTS:
        raise StateConflict(f"a tenant may have {MAX_ENDPOINTS} webhook endpoints: delete one first")


def _test_body(key: EndpointKey) -> str:
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    data = {"object": "webhook_endpoint", "id": key.id}
    return json.dumps({"type": "webhook.test", "timestamp": now, "data": data}, separators=(",", ":"))


def _edit(wanted: Mapping[str, Any]) -> endpoint_changes.Edit:
    def edit(found: Endpoint, at: float) -> Endpoint:
        new: Endpoint = replace(found, **wanted)
        if new.enabled and not found.enabled:
            new = replace(new, since_s=at)
        return replace(new, disabled_reason=None) if "enabled" in wanted else new

    return edit
