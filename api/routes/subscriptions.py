"""Subscriptions: each new item of a STAC catalogue becomes a job. The keeper looks at the catalogues."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import uuid_utils
from fastapi import APIRouter, Depends, Request, Response

from penstock.api.auth import Tenant
from penstock.api.body import json_body, read_model
from penstock.api.errors import problems
from penstock.api.routes.artifacts import send_artifact
from penstock.api.schemas.subscriptions import (
    NAME,
    SubscriptionList,
    SubscriptionRequest,
    SubscriptionView,
    subscription_view,
)
from penstock.api.services import Api, Services
from penstock.errors import (
    InvalidInput,
    InvalidRequest,
    Issue,
    MediaRefused,
    ObjectNotFound,
    StateConflict,
    UnknownArtifact,
    UnknownSubscription,
)
from penstock.intake.change_condition import parse_condition
from penstock.intake.item_area import check_degrees, named_polygons
from penstock.intake.item_filter import parse_filter
from penstock.intake.item_inputs import job_input, maps_classes
from penstock.intake.media import web_address
from penstock.intake.submissions import check_input, check_receiver, servable
from penstock.jobs import Artifact
from penstock.storage.journal import subscriptions
from penstock.storage.journal.subscription_progress import Progress, read_progress
from penstock.storage.journal.subscriptions import Subscription, SubscriptionKey

router = APIRouter(prefix="/v1/subscriptions", tags=["subscriptions"], responses=problems(503))

#: A STAC item that stands for those of the catalogue where a model's schema is checked.
_ITEM = {"type": "Feature", "id": "item", "properties": {}, "assets": {}}
_READ: dict[int | str, dict[str, Any]] = problems(404, 416) | {
    302: {"description": "A short-lived link to the object store."}
}
#: Media types of the files of results.
_TYPES = {
    ".json": "application/json", ".geojson": "application/geo+json", ".png": "image/png",
    ".tif": "image/tiff; application=geotiff; profile=cloud-optimized",
}  # fmt: skip
#: Bytes of a JSON file that is returned without a redirect, at most.
_JSON_BYTES = 32 << 20
_NOT_ALLOWED = "the service may not fetch from this address; the operator can allow it (allowed_hosts)"


async def _subscription_key(name: str, tenant: Tenant) -> SubscriptionKey:
    if not re.fullmatch(NAME, name):
        raise UnknownSubscription(f"there is no subscription {name[:100]!r}")
    return SubscriptionKey(tenant, name)


Key = Annotated[SubscriptionKey, Depends(_subscription_key)]


@router.post(
    "",
    status_code=201,
    openapi_extra=json_body(SubscriptionRequest),
    responses=problems(400, 408, 409, 413, 415, 422),
)
async def create_subscription(request: Request, response: Response, api: Api, tenant: Tenant) -> SubscriptionView:
    """Create a subscription. Safe to repeat: the same request again finds it, another one for its name is a 409."""
    body = await read_model(request, api, SubscriptionRequest)
    key = SubscriptionKey(tenant, body.value.name)
    wanted = body.value.value(key, uid=str(uuid_utils.uuid7()), fingerprint=body.fingerprint, at=time.time())
    await _check(api, wanted)
    known = await asyncio.to_thread(subscriptions.list_subscriptions, api.objects, tenant)
    limit = api.settings.max_tenant_subscriptions
    if len(known) >= limit and key not in {each.key for each in known}:
        raise StateConflict(f"the tenant already has {limit} subscriptions; delete one first")
    found, created = await asyncio.to_thread(subscriptions.create_subscription, api.objects, wanted)
    response.headers["Location"] = f"{api.settings.base_url}/v1/subscriptions/{key.id}"
    if not created:
        response.headers["Idempotency-Replayed"] = "true"
    return await _view(api, found)


@router.get("")
async def list_subscriptions(api: Api, tenant: Tenant) -> SubscriptionList:
    """List the subscriptions by name, each with its latest ten notes and results."""
    found = await asyncio.to_thread(subscriptions.list_subscriptions, api.objects, tenant)
    return SubscriptionList(subscriptions=[await _view(api, each, most=10) for each in found])


@router.get("/{name}", responses=problems(404))
async def read_subscription(key: Key, api: Api) -> SubscriptionView:
    """Return a subscription with its progress: what the keeper saw last, and why it skipped items."""
    return await _view(api, await asyncio.to_thread(subscriptions.read_subscription, api.objects, key))


@router.post("/{name}/pause", responses=problems(404))
async def pause_subscription(key: Key, api: Api) -> SubscriptionView:
    """Pause a subscription: the keeper no longer looks at its catalogue. Its jobs go on. Safe to repeat."""
    return await _changed(api, key, lambda found: replace(found, paused=True))


@router.post("/{name}/resume", responses=problems(404))
async def resume_subscription(key: Key, api: Api) -> SubscriptionView:
    """Resume a paused subscription: items that came meanwhile become jobs. Safe to repeat."""
    return await _changed(api, key, lambda found: replace(found, paused=False))


@router.delete("/{name}", status_code=204, responses=problems(404))
async def delete_subscription(key: Key, api: Api) -> Response:
    """Delete a subscription with its collection of results. Its jobs stay for their retention."""
    edit: subscriptions.Edit = lambda found: replace(found, deleted=True, webhook=None, area=None)  # noqa: E731
    await asyncio.to_thread(subscriptions.change_subscription, api.objects, key, edit)
    return Response(status_code=204)


@router.head("/{name}/stac/{path:path}", include_in_schema=False)
@router.get("/{name}/stac/{path:path}", response_class=Response, responses=_READ)
async def read_result(key: Key, path: str, request: Request, api: Api) -> Response:
    """Return a file of the STAC collection of the results: `collection.json`, its items, and their assets.

    JSON is returned as it is; for other files this may be a redirect (302) to a fresh link to the object store. Byte
    ranges are supported.
    """
    await asyncio.to_thread(subscriptions.read_subscription, api.objects, key)
    if ".." in path.split("/") or not path:
        raise UnknownArtifact(f"the subscription has no file {path[:200]!r}")
    try:
        info = await asyncio.to_thread(api.objects.head, key.results + path)
    except ObjectNotFound as error:
        raise UnknownArtifact(f"the subscription has no file {path[:200]!r}") from error
    kind = _TYPES.get(Path(path).suffix.lower(), info.content_type)
    if path.endswith(".json") and info.size_bytes <= _JSON_BYTES:
        data = await asyncio.to_thread(api.objects.get_bytes, info.key, limit_bytes=_JSON_BYTES)
        return Response(data, media_type=kind, headers={"Cache-Control": "no-cache"})
    return await send_artifact(api, Artifact(path, kind, info.size_bytes, info.etag, info.key), request)


async def _changed(api: Services, key: SubscriptionKey, edit: subscriptions.Edit) -> SubscriptionView:
    return await _view(api, await asyncio.to_thread(subscriptions.change_subscription, api.objects, key, edit))


async def _view(api: Services, found: Subscription, *, most: int = 100) -> SubscriptionView:
    progress = await asyncio.to_thread(read_progress, api.objects, found.key)
    if progress is None or progress.uid != found.uid:
        progress = Progress(found.key, found.uid, found.since_s)
    return subscription_view(found, progress, api.settings.base_url, most=most)


async def _check(api: Services, wanted: Subscription) -> None:
    """Raise `InvalidRequest`, or the errors of the model, for a subscription whose jobs would be refused."""
    settings = api.settings
    least_s = settings.min_subscription_every_s
    if wanted.every_s < least_s:
        raise InvalidRequest(errors=[Issue("/every", f"must be at least {least_s:g} s (min_subscription_every_s)")])
    try:
        web_address(wanted.stac, tenant=wanted.key.tenant, settings=settings)
    except MediaRefused as error:
        raise InvalidRequest(errors=[Issue("/stac", _NOT_ALLOWED)]) from error
    if wanted.filter is not None:
        parse_filter(wanted.filter)
    if wanted.area is not None:
        await asyncio.to_thread(check_degrees, named_polygons(wanted.area))
    if wanted.webhook is not None:
        check_receiver(wanted.webhook, settings, "/webhook/url")
    entry = servable(wanted.model, await api.models.read(wanted.model))
    try:
        value = job_input(wanted.area, wanted.input, _ITEM, entry)
    except InvalidInput as error:
        raise InvalidRequest(errors=[Issue("/model", "takes no STAC items")]) from error
    check_input(entry, value)
    if wanted.condition is not None:
        parse_condition(wanted.condition)
        if not maps_classes(value):
            raise InvalidRequest(errors=[Issue("/condition", "needs a model with the outputs classes and item")])
