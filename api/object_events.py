"""`POST /v1/events/s3`: where object stores tell of new objects under drop rules.

An event can do no more than cause a look at an object of a rule of the key's tenant; what it says of the object is not
believed. Without such a rule nothing is taken.
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
from penstock.config import WEBHOOK, Settings
from penstock.drop_rules import Place, owner
from penstock.errors import EventsNotAwaited, RequestError
from penstock.object_events import Notification, ObjectEvent, read_notification
from penstock.storage import drop_events
from penstock.storage.drop_events import DUPLICATE, FOREIGN, HTTP, IGNORED, UNREADABLE

log = structlog.get_logger(__name__)
router = APIRouter(prefix="/v1/events", tags=["drops"], responses=problems(503))

_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"type": "object", "description": "What AWS, MinIO or Ceph sends: `Records` of S3 events."}
            }
        },
    }
}


class EventsView(BaseModel):
    """What became of a notification's events."""

    object: Literal["events"] = "events"
    queued: int = Field(description="Objects that will be looked at.")
    duplicate: int = Field(description="Objects that wait to be looked at already.")
    foreign: int = Field(description="Objects that no drop rule of the tenant waits for.")
    ignored: int = Field(description="Events that ask for nothing: deletions, folders, tests.")
    unreadable: int = Field(description="Records that are none of the known shapes.")


@router.post("/s3", status_code=202, openapi_extra=_BODY, responses=problems(400, 404, 408, 413, 415, 422))
async def take_object_events(request: Request, api: Api, tenant: Tenant) -> EventsView:
    """Take the events of an object store: S3 records (AWS, MinIO, Ceph), SNS envelopes, EventBridge.

    For drop rules with `events = "webhook"`. Each event has the object looked at, and nothing in it is believed.
    """
    if not any(rule.events == WEBHOOK and rule.tenant == tenant for rule in api.settings.drops):
        raise EventsNotAwaited("a drop rule of the tenant with `events = 'webhook'` waits for them")
    said = await _read(request, api)
    ours = [event for event in said.events if _is_awaited(event, tenant, api.settings)]
    told = await api.jobs.run(drop_events.tell(ours))
    view = EventsView(
        queued=told.new,
        duplicate=told.known,
        foreign=len(said.events) - len(ours),
        ignored=said.ignored,
        unreadable=said.unreadable,
    )
    await _count(api, Counter({name: getattr(view, name) for name in (DUPLICATE, FOREIGN, IGNORED, UNREADABLE)}))
    return view


async def _read(request: Request, api: Api) -> Notification:
    payload = await read_json(request, settings=api.settings)
    try:
        said = read_notification(payload)
    except RequestError as error:
        log.error("drop.unreadable_message", why=error.detail)  # noqa: TRY400  (the answer says the rest)
        await _count(api, Counter({UNREADABLE: 1}))
        raise
    if said.unreadable:
        log.error("drop.unreadable_records", records=said.unreadable)
    return said


def _is_awaited(event: ObjectEvent, tenant: str, settings: Settings) -> bool:
    found = owner(settings.drops, Place(event.bucket, event.key))
    return found is not None and found[0].events == WEBHOOK and found[0].tenant == tenant


async def _count(api: Api, outcomes: Counter[str]) -> None:
    if found := {name: count for name, count in outcomes.items() if count}:
        await api.jobs.run(drop_events.count(HTTP, found))
