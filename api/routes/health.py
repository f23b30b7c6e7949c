"""Health checks: liveness and readiness."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter

from penstock.api.errors import problems
from penstock.api.schemas.jobs import ReadyView
from penstock.api.services import Api
from penstock.errors import Issue, NotReady, ObjectStoreFull, OutOfSpace, PenstockError, RedisFull
from penstock.storage.redis.identity import Identity, identity, writable
from penstock.storage.spool import require_writable

#: Time limit of a check in seconds.
CHECK_TIMEOUT_S = 3.0

router = APIRouter(tags=["health"])


@router.head("/livez", include_in_schema=False)
@router.get("/livez")
async def livez() -> dict[str, str]:
    """Return `ok` while the process runs."""
    return {"status": "ok"}


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", responses=problems(503))
async def readyz(api: Api) -> ReadyView:
    """Return 200 when both stores answer and the job store and the disks accept writes, else 503 with the checks.

    An object store in a folder and the scratch folder are checked by writing; a bucket only has to answer.
    """
    jobs, objects, spool = await asyncio.gather(_job_store(api), _object_store(api), _spool(api))
    issues = [found for found in (jobs, objects, spool) if isinstance(found, Issue)]
    if isinstance(jobs, Issue) or issues:
        raise NotReady("the service cannot take jobs", errors=issues)
    return ReadyView(job_store=jobs.id)


async def _job_store(api: Api) -> Identity | Issue:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            found = await api.jobs.run(identity())
            await api.jobs.run(writable())
    except RedisFull as error:
        return Issue("/job_store", error.detail)
    except (PenstockError, TimeoutError):
        return Issue("/job_store", "does not answer")
    return found


async def _object_store(api: Api) -> Issue | None:
    try:
        await asyncio.wait_for(asyncio.to_thread(api.objects.ping), CHECK_TIMEOUT_S)
    except ObjectStoreFull:
        return Issue("/object_store", "is full")
    except (PenstockError, TimeoutError):
        return Issue("/object_store", "does not answer")
    return None


async def _spool(api: Api) -> Issue | None:
    try:
        await asyncio.wait_for(asyncio.to_thread(require_writable, api.settings.spool_dir), CHECK_TIMEOUT_S)
    except OutOfSpace:
        return Issue("/spool", "is full")
    except (PenstockError, TimeoutError):
        return Issue("/spool", "cannot be written")
    return None
