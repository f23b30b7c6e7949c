"""How webhooks fared: those of a job, single ones, and those that failed for good."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from penstock.api.auth import Key, Tenant
from penstock.api.errors import problems
from penstock.api.jobs import Wait, wait_until
from penstock.api.schemas import DeliveryList, DeliveryView, delivery_view
from penstock.api.services import Api, Services
from penstock.api.webhook_schemas import DeadDeliveries, Redelivered, dead_deliveries_view
from penstock.errors import StateConflict, UnknownDelivery
from penstock.jobs import Delivery, JobKey
from penstock.storage import journal
from penstock.storage.deliveries import DeliveryRecord, dead_deliveries, deliveries, delivery, redeliver

#: Deliveries that one call sends again; what is left is told.
MAX_DELIVERIES = 500

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], responses=problems(404, 410, 503))
tenants_router = APIRouter(prefix="/v1/deliveries", tags=["webhooks"], responses=problems(503))

OfEndpoint = Annotated[str | None, Query(description="Only those of this endpoint.", max_length=64)]


@router.get("/{job_id}/deliveries")
async def list_deliveries(key: Key, api: Api) -> DeliveryList:
    """List the deliveries of a job's events with each try."""
    await api.journal.run(journal.read(key))  # makes the job anew where Redis lost it
    return DeliveryList(deliveries=[delivery_view(row) for row in await api.jobs.run(deliveries(key))])


@router.post("/{job_id}/deliveries/{delivery_id}/redeliver", status_code=202, responses=problems(409))
async def redeliver_event(key: Key, delivery_id: str, api: Api) -> DeliveryView:
    """Send an event now, under the same id and with the same bytes: once more, or sooner than it was due.

    A try that is under way is left to end.
    """
    return delivery_view(await api.jobs.run(redeliver(key.tenant, delivery_id, job_id=key.id)))


@tenants_router.get("/dead-letters", responses=problems(422))
async def list_dead_deliveries(
    api: Api, tenant: Tenant, endpoint: OfEndpoint = None, limit: Annotated[int, Query(ge=1, le=MAX_DELIVERIES)] = 50
) -> DeadDeliveries:
    """List the deliveries that failed for good, the latest first; sending one again takes it off the list."""
    rows, more = await api.jobs.run(dead_deliveries(tenant, endpoint=endpoint, limit=limit))
    return dead_deliveries_view(rows, more=more)


@tenants_router.post("/dead-letters/redeliver", status_code=202, responses=problems(422))
async def redeliver_dead(api: Api, tenant: Tenant, endpoint: OfEndpoint = None) -> Redelivered:
    """Send again what failed for good, at most 500 a call: repeat while `more` is true and some were sent.

    What is for a disabled endpoint stays where it is.
    """
    rows, _ = await api.jobs.run(dead_deliveries(tenant, endpoint=endpoint, limit=MAX_DELIVERIES))
    sent = [await _sent_again(api, row) for row in rows]
    left, _ = await api.jobs.run(dead_deliveries(tenant, endpoint=endpoint, limit=1))
    return Redelivered(deliveries=sum(sent), more=len(left) > 0)


@tenants_router.get("/{delivery_id}", responses=problems(404, 422))
async def read_delivery(delivery_id: str, api: Api, tenant: Tenant, wait: Wait = 0) -> DeliveryView:
    """Return a delivery, at once or when it is delivered or has failed (60 s at most)."""

    async def read() -> tuple[DeliveryRecord, bool]:
        row = await api.jobs.run(delivery(tenant, delivery_id))
        return row, row.state is not Delivery.PENDING

    # Scripts tell of a delivery as they do of a job, by tenant and id.
    return delivery_view(await wait_until(api, str(JobKey(tenant, delivery_id)), wait, read))


@tenants_router.post("/{delivery_id}/redeliver", status_code=202, responses=problems(404, 409, 410))
async def redeliver_one(delivery_id: str, api: Api, tenant: Tenant) -> DeliveryView:
    """Send an event now, under the same id and with the same bytes: once more, or sooner than it was due."""
    return delivery_view(await api.jobs.run(redeliver(tenant, delivery_id)))


async def _sent_again(api: Services, row: DeliveryRecord) -> bool:
    try:
        await api.jobs.run(redeliver(row.key.tenant, row.id))
    except (StateConflict, UnknownDelivery):
        return False
    return True
