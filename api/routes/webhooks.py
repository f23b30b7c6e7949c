"""Webhook endpoints: receivers of the events of all of a tenant's jobs."""

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
from penstock.api.body import json_body, read_model
from penstock.api.errors import problems
from penstock.api.idempotency import id_from
from penstock.api.schemas.webhooks import (
    DeliveryPageView,
    DeliveryView,
    EndpointChange,
    EndpointList,
    EndpointRequest,
    EndpointSecretView,
    EndpointView,
    RotateRequest,
)
from penstock.api.services import Api, Services
from penstock.config_tables import find_target
from penstock.errors import InvalidRequest, Issue, StateConflict, UnknownEndpoint
from penstock.intake.event_formats import in_format
from penstock.intake.submissions import check_receiver, names_of
from penstock.storage.journal import endpoint_changes, endpoints
from penstock.storage.journal.endpoints import Endpoint, EndpointKey
from penstock.storage.redis import deliveries

#: Endpoints of one tenant. The end of each job reads all of them.
MAX_ENDPOINTS = 32
#: UUIDv5 namespace of endpoint ids from an Idempotency-Key and the tenant.
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
    openapi_extra=json_body(EndpointRequest),
    responses=problems(400, 408, 409, 413, 415, 422),
)
async def create_endpoint(
    request: Request,
    response: Response,
    api: Api,
    tenant: Tenant,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> EndpointSecretView:
    """Create a webhook endpoint. Only this response contains its secret.

    With an `Idempotency-Key`, safe to repeat for a day.
    """
    body = await read_model(request, api, EndpointRequest)
    wanted = body.value
    _check_receiver(wanted.url, api, tenant)
    endpoint_id = str(uuid_utils.uuid7()) if idempotency_key is None else id_from(_NAMESPACE, tenant, idempotency_key)
    key = EndpointKey(tenant, endpoint_id)
    value = wanted.value(key, fingerprint=body.fingerprint)
    known = await asyncio.to_thread(endpoints.list_endpoints, api.objects, tenant)
    # A repeated request finds its endpoint, even where the limit is reached by now.
    if key not in {endpoint.key for endpoint in known}:
        _require_room(known)
        value = replace(value, models=await _models(api, value.models))
    endpoint, created = await api.journal.run(endpoint_changes.create(value))
    response.headers["Location"] = f"{api.settings.base_url}/v1/webhook-endpoints/{key.id}"
    if not created:
        response.headers["Idempotency-Replayed"] = "true"
    return EndpointSecretView.model_validate(endpoint)


@router.get("")
async def list_endpoints(api: Api, tenant: Tenant) -> EndpointList:
    """List the webhook endpoints, oldest first."""
    found = await asyncio.to_thread(endpoints.list_endpoints, api.objects, tenant)
    return EndpointList(endpoints=list(map(EndpointView.model_validate, found)))


@router.get("/{endpoint_id}", responses=problems(404))
async def read_endpoint(key: Key, api: Api) -> EndpointView:
    """Return a webhook endpoint."""
    return EndpointView.model_validate(await _read(api, key))


@router.patch(
    "/{endpoint_id}",
    openapi_extra=json_body(EndpointChange),
    responses=problems(400, 404, 408, 413, 415, 422),
)
async def change_endpoint(key: Key, request: Request, api: Api) -> EndpointView:
    """Change a webhook endpoint. Waiting deliveries go to the new URL; a disabled endpoint receives nothing."""
    wanted = (await read_model(request, api, EndpointChange)).value.changes()
    if "url" in wanted:
        _check_receiver(wanted["url"], api, key.tenant)
    if "models" in wanted:
        kept = (await _read(api, key)).models
        wanted = {**wanted, "models": await _models(api, wanted["models"], kept)}
    return EndpointView.model_validate(await api.journal.run(endpoint_changes.change(key, _edit(wanted))))


@router.delete("/{endpoint_id}", status_code=204, responses=problems(404))
async def delete_endpoint(key: Key, api: Api) -> Response:
    """Delete a webhook endpoint. Its waiting deliveries are not sent."""
    await api.journal.run(endpoint_changes.delete(key))
    return Response(status_code=204)


@router.post(
    "/{endpoint_id}/rotate",
    openapi_extra={"requestBody": {**json_body(RotateRequest)["requestBody"], "required": False}},
    responses=problems(400, 404, 408, 409, 413, 415, 422),
)
async def rotate_secret(key: Key, request: Request, api: Api) -> EndpointSecretView:
    """Create a new secret for an endpoint and return it. Old secrets also sign until the overlap ends."""
    empty = request.headers.get("content-length", "0") == "0" and "transfer-encoding" not in request.headers
    overlap_s = None if empty else (await read_model(request, api, RotateRequest)).value.overlap_s
    edit = endpoint_changes.rotated(api.settings.webhook_secret_overlap_s if overlap_s is None else overlap_s)
    return EndpointSecretView.model_validate(await api.journal.run(endpoint_changes.change(key, edit)))


@router.post("/{endpoint_id}/test", status_code=202, responses=problems(404, 409))
async def test_endpoint(key: Key, response: Response, api: Api) -> DeliveryView:
    """Send one `webhook.test` event; `GET /v1/deliveries/{id}?wait=20` returns its outcome."""
    endpoint = await _read(api, key)
    if not endpoint.enabled:
        raise StateConflict("the endpoint is disabled; enable it first")
    name = f"msg_test_{uuid_utils.uuid7()}"
    command = deliveries.send_test(
        key.tenant, key.id, url=endpoint.url, delivery_id=name, body=_test_body(endpoint, name, api.settings.base_url)
    )
    delivery = await api.jobs.run(command)
    response.headers["Location"] = f"{api.settings.base_url}/v1/deliveries/{delivery.id}"
    return DeliveryView.model_validate(delivery)


@router.get("/{endpoint_id}/deliveries", responses=problems(404, 422))
async def list_endpoint_deliveries(key: Key, api: Api, limit: Limit = 50, cursor: Cursor = None) -> DeliveryPageView:
    """List an endpoint's deliveries with all tries, newest event first."""
    await _read(api, key)
    command = deliveries.endpoint_deliveries(key.tenant, key.id, cursor=cursor, limit=limit)
    return DeliveryPageView.model_validate(await api.jobs.run(command))


async def _read(api: Services, key: EndpointKey) -> Endpoint:
    return await asyncio.to_thread(endpoints.read_endpoint, api.objects, key)


def _check_receiver(url: str, api: Services, tenant: str) -> None:
    if not url.startswith("arn:"):
        check_receiver(url, api.settings, "/url")
    elif find_target(api.settings.event_targets, url, tenant) is None:
        why = "is no topic or queue that event_targets of the settings names for this tenant"
        raise InvalidRequest(errors=[Issue("/url", why)])


async def _models(api: Services, wanted: Sequence[str], kept: Sequence[str] = ()) -> tuple[str, ...]:
    if not wanted:
        return ()
    catalogue = await api.models.read(*wanted)
    return names_of(wanted, catalogue, kept)


def _require_room(found: Sequence[Endpoint]) -> None:
    if len(found) >= MAX_ENDPOINTS:
        raise StateConflict(f"the tenant already has {MAX_ENDPOINTS} webhook endpoints; delete one first")


def _test_body(endpoint: Endpoint, delivery_id: str, base_url: str) -> str:
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    data = {"object": "webhook_endpoint", "id": endpoint.key.id}
    body = json.dumps({"type": "webhook.test", "timestamp": now, "data": data}, separators=(",", ":"))
    return in_format(endpoint.format, body, delivery_id, base_url)


def _edit(wanted: Mapping[str, Any]) -> endpoint_changes.Edit:
    def edit(found: Endpoint, at: float) -> Endpoint:
        new: Endpoint = replace(found, **wanted)
        if new.enabled and not found.enabled:
            new = replace(new, since_s=at)
        return replace(new, disabled_reason=None) if "enabled" in wanted else new

    return edit
