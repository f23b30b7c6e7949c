"""Whether the process lives, and whether it can accept jobs."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter

from penstock.api.errors import problems
from penstock.api.schemas import Ready
from penstock.api.services import Api
from penstock.errors import NotReady, PenstockError
from penstock.reports import Issue
from penstock.storage.identity import Identity, identity

#: A check that takes longer has failed.
CHECK_TIMEOUT_S = 3.0

router = APIRouter(tags=["health"])


@router.head("/livez", include_in_schema=False)
@router.get("/livez")
async def livez() -> dict[str, str]:
    """Answer, if the process can."""
    return {"status": "ok"}


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", responses=problems(503))
async def readyz(api: Api) -> Ready:
    """Answer 200 when the job store and the object store do, 503 with what is missing otherwise."""
    jobs, objects = await asyncio.gather(_job_store(api), _object_store(api))
    issues = [found for found in (jobs, objects) if isinstance(found, Issue)]
    if isinstance(jobs, Issue) or issues:
        raise NotReady(" ".join(f"{issue.pointer[1:]}: {issue.detail}" for issue in issues), errors=issues)
    return Ready(job_store=jobs.mark)


async def _job_store(api: Api) -> Identity | Issue:
    try:
        return await asyncio.wait_for(api.jobs.run(identity()), CHECK_TIMEOUT_S)
    except (PenstockError, TimeoutError):
        return Issue("/job_store", "does not answer")


async def _object_store(api: Api) -> Issue | None:
    try:
        await asyncio.wait_for(asyncio.to_thread(api.objects.ping), CHECK_TIMEOUT_S)
    except (PenstockError, TimeoutError):
        return Issue("/object_store", "does not answer")
    return None
