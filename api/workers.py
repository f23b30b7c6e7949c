"""Workers: what each says of itself."""

from __future__ import annotations

from fastapi import APIRouter

from penstock.api.errors import problems
from penstock.api.queue_schemas import WorkerList, worker_view
from penstock.api.services import Api
from penstock.storage import workers

router = APIRouter(prefix="/v1/workers", tags=["queues"], responses=problems(503))


@router.get("")
async def list_workers(api: Api) -> WorkerList:
    """List the workers that live: device, models, batches, and how many jobs each runs."""
    return WorkerList(workers=[worker_view(live) for live in await api.jobs.run(workers.living())])
