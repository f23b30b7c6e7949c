"""Workers: the live workers, as they report themselves."""

from __future__ import annotations

from fastapi import APIRouter

from penstock.api.errors import problems
from penstock.api.schemas.queues import WorkerList, worker_view
from penstock.api.services import Api
from penstock.storage.redis import workers

router = APIRouter(prefix="/v1/workers", tags=["queues"], responses=problems(503))


@router.get("")
async def list_workers(api: Api) -> WorkerList:
    """List the live workers with device, models, batches, and number of running jobs."""
    return WorkerList(workers=[worker_view(live) for live in await api.jobs.run(workers.living())])
