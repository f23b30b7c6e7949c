"""Webhook deliveries: those of a job, single ones, and dead letters."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from penstock.api.auth import Key, Tenant
from penstock.api.errors import problems
from penstock.api.routes.jobs import Wait, wait_until
from penstock.api.schemas.webhooks import DeadDeliveries, DeliveryList, DeliveryView, RedeliveryView
from penstock.api.services import Api, Services
from penstock.errors import StateConflict, UnknownDelivery
from penstock.jobs import Delivery, JobKey
from penstock.storage.journal import journal
from penstock.storage.redis.deliveries import DeliveryRecord, dead_deliveries, deliveries, delivery, redeliver

#: Deliveries that one call sends again. The response says if more remain.
MAX_DELIVERIES = 500

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], responses=problems(404, 410, 503))
tenants_router = APIRouter(prefix="/v1/deliveries", tags=["webhooks"], responses=problems(503))

ByEndpoint = Annotated[str | None, Query(description="Only deliveries to this endpoint.", max_length=64)]


@router.get("/{job_id}/deliveries")
async def list_deliveries(key: Key, api: Api) -> DeliveryList:
    """List the deliveries of a job's events with all tries."""
    await api.journal.run(journal.read(key))  # restores a job that Redis lost
    return DeliveryList(deliveries=await api.jobs.run(deliveries(key)))


@router.post("/{job_id}/deliveries/{delivery_id}/redeliver", status_code=202, responses=problems(409))
async def redeliver_event(key: Key, delivery_id: str, api: Api) -> DeliveryView:
    """Send an event again now, or sooner than it was due, with the same id and the same bytes.

    A try in progress continues.
    """
    return DeliveryView.model_validate(await api.jobs.run(redeliver(key.tenant, delivery_id, job_id=key.id)))


@tenants_router.get("/dead-letters", responses=problems(422))
async def list_dead_deliveries(
    api: Api, tenant: Tenant, endpoint: ByEndpoint = None, limit: Annotated[int, Query(ge=1, le=MAX_DELIVERIES)] = 50
) -> DeadDeliveries:
    """List the permanently failed deliveries, newest first. Sending one again removes it from the list."""
    rows, more = await api.jobs.run(dead_deliveries(tenant, endpoint=endpoint, limit=limit))
    return DeadDeliveries(deliveries=rows, more=more)


@tenants_router.post("/dead-letters/redeliver", status_code=202, responses=problems(422))
async def redeliver_dead(api: Api, tenant: Tenant, endpoint: ByEndpoint = None) -> RedeliveryView:
    """Send permanently failed deliveries again, at most 500 per call: repeat while `more` is true and some were sent.

    Deliveries to a disabled endpoint are not sent and remain in the list.
    """
    rows, _ = await api.jobs.run(dead_deliveries(tenant, endpoint=endpoint, limit=MAX_DELIVERIES))
    sent = [await _redelivered(api, row) for row in rows]
    left, _ = await api.jobs.run(dead_deliveries(tenant, endpoint=endpoint, limit=1))
    return RedeliveryView(deliveries=sum(sent), more=len(left) > 0)


@tenants_router.get("/{delivery_id}", responses=problems(404, 422))
async def read_delivery(delivery_id: str, api: Api, tenant: Tenant, wait: Wait = 0) -> DeliveryView:
    """Return a delivery; with `wait`, when it is delivered or has failed (55 s at most)."""

    async def read() -> tuple[DeliveryRecord, bool]:
        row = await api.jobs.run(delivery(tenant, delivery_id))
        return row, row.state is not Delivery.PENDING

    # Scripts publish a delivery's changes under tenant and id, as those of a job.
    return DeliveryView.model_validate(await wait_until(api, str(JobKey(tenant, delivery_id)), wait, read))


@tenants_router.post("/{delivery_id}/redeliver", status_code=202, responses=problems(404, 409, 410))
async def redeliver_one(delivery_id: str, api: Api, tenant: Tenant) -> DeliveryView:
    """Send an event again now, or sooner than it was due, with the same id and the same bytes."""
    return DeliveryView.model_validate(await api.jobs.run(redeliver(tenant, delivery_id)))


async def _redelivered(api: Services, row: DeliveryRecord) -> bool:
    try:
        await api.jobs.run(redeliver(row.key.tenant, row.id))
    except (StateConflict, UnknownDelivery):
        return False
    return True
