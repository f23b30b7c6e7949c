"""How a job's webhooks fared."""

from __future__ import annotations

from fastapi import APIRouter

from penstock.api.auth import Key
from penstock.api.schemas import DeliveryList, delivery_view
from penstock.api.services import Api
from penstock.storage.deliveries import deliveries

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


@router.get("/{job_id}/deliveries")
async def list_deliveries(key: Key, api: Api) -> DeliveryList:
    """List the deliveries of a job's events with each try."""
    return DeliveryList(deliveries=[delivery_view(row) for row in await api.jobs.run(deliveries(key))])
