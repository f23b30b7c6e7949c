"""How a job's webhooks fared."""

from __future__ import annotations

from fastapi import APIRouter

from penstock.api.auth import Key
from penstock.api.errors import problems
from penstock.api.schemas import DeliveryList, DeliveryView, delivery_view
from penstock.api.services import Api
from penstock.storage import journal
from penstock.storage.deliveries import deliveries, redeliver

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], responses=problems(404, 410, 503))


@router.get("/{job_id}/deliveries")
async def list_deliveries(key: Key, api: Api) -> DeliveryList:
    """List the deliveries of a job's events with each try."""
    await api.journal.run(journal.read(key))  # makes the job anew where Redis lost it
    return DeliveryList(deliveries=[delivery_view(row) for row in await api.jobs.run(deliveries(key))])


@router.post("/{job_id}/deliveries/{delivery_id}/redeliver", status_code=202)
async def redeliver_event(key: Key, delivery_id: str, api: Api) -> DeliveryView:
    """Send an event once more, under the same id and with the same bytes, after it was delivered or given up."""
    return delivery_view(await api.jobs.run(redeliver(key, delivery_id)))
