"""The lines of a job: what its processor and runner said."""

from __future__ import annotations

from fastapi import APIRouter

from penstock.api.auth import Key
from penstock.api.errors import problems
from penstock.api.schemas.jobs import LineList, line_list
from penstock.api.services import Api
from penstock.storage.journal import journal
from penstock.storage.redis.job_logs import read_lines

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], responses=problems(404, 410, 503))


@router.get("/{job_id}/logs")
async def list_lines(key: Key, api: Api) -> LineList:
    """List the lines that the job's processor and runner logged or printed, the oldest first.

    At most 1,000 lines and 64 KiB of a job are kept, as long as the job. Long jobs add their lines while they run, at
    most the first 32 KiB of an attempt; its latest lines follow at its end. A line of the runner is kept where the
    job was alone in its batch.
    """
    await api.journal.run(journal.read(key))  # restores a job that Redis lost
    return line_list(await api.jobs.run(read_lines(key)))
