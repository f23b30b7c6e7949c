"""`POST /v1/events/s3`: receives notifications of new objects for drop rules from object stores.

An event only makes the keeper read an object under a drop rule of the key's tenant. The event's claims are not trusted.
Without such a rule the route answers 404.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import structlog
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from penstock.api.auth import Tenant
from penstock.api.body import read_json
from penstock.api.errors import problems
from penstock.api.services import Api
from penstock.config import Settings
from penstock.config_tables import WEBHOOK
from penstock.errors import EventsNotAwaited, RequestError
from penstock.object_events import Notification, ObjectEvent, read_notification
from penstock.storage.drop_rules import ObjectPlace, owner
from penstock.storage.redis import drop_events
from penstock.storage.redis.drop_events import DUPLICATE, FOREIGN, HTTP, IGNORED, UNREADABLE

log = structlog.get_logger(__name__)
router = APIRouter(prefix="/v1/events", tags=["drops"], responses=problems(503))

_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "description": "`Records` of S3 events, from AWS, MinIO or Ceph.",
                }
            }
        },
    }
}


class EventsView(BaseModel):
    """Counts of a notification's events by outcome."""

    object: Literal["events"] = "events"
    queued: int = Field(description="Objects queued for reading.")
    duplicate: int = Field(description="Objects that are already queued.")
    foreign: int = Field(description="Objects that match no drop rule of the tenant.")
    ignored: int = Field(description="Events without effect: deletions, folders, tests.")
    unreadable: int = Field(description="Records in no known format.")


@router.post("/s3", status_code=202, openapi_extra=_BODY, responses=problems(400, 404, 408, 413, 415, 422))
async def take_object_events(request: Request, api: Api, tenant: Tenant) -> EventsView:
    """Receive an object store's events: S3 records (AWS, MinIO, Ceph), SNS envelopes, EventBridge.

    For drop rules with `events = "webhook"`. The keeper reads each object; the event itself is not trusted.
    """
    if not any(rule.events == WEBHOOK and rule.tenant == tenant for rule in api.settings.drops):
        raise EventsNotAwaited("no drop rule of this tenant receives events; add one with `events = 'webhook'`")
    notification = await _read(request, api)
    ours = [event for event in notification.events if _is_awaited(event, tenant, api.settings)]
    queued = await api.jobs.run(drop_events.add(ours))
    view = EventsView(
        queued=queued.new,
        duplicate=queued.known,
        foreign=len(notification.events) - len(ours),
        ignored=notification.ignored,
        unreadable=notification.unreadable,
    )
    await _count(api, Counter({name: getattr(view, name) for name in (DUPLICATE, FOREIGN, IGNORED, UNREADABLE)}))
    return view


async def _read(request: Request, api: Api) -> Notification:
    notification = (await read_json(request, api, _notification)).value
    if isinstance(notification, RequestError):
        log.error("drop.unreadable_message", why=notification.detail)  # the response has the details
        await _count(api, Counter({UNREADABLE: 1}))
        raise notification
    if notification.unreadable:
        log.error("drop.unreadable_records", records=notification.unreadable)
    return notification


def _notification(payload: Any) -> Notification | RequestError:
    """Return the notification, or the error of JSON that is none."""
    try:
        return read_notification(payload)
    except RequestError as error:
        return error


def _is_awaited(event: ObjectEvent, tenant: str, settings: Settings) -> bool:
    found = owner(settings.drops, ObjectPlace(event.bucket, event.key))
    return found is not None and found[0].events == WEBHOOK and found[0].tenant == tenant


async def _count(api: Api, outcomes: Counter[str]) -> None:
    if found := {name: count for name, count in outcomes.items() if count}:
        await api.jobs.run(drop_events.count(HTTP, found))
