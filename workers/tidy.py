"""What nobody will ask for any more: drafts of dead writers, old uploads, artifacts that will never be visible."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

import structlog

from penstock.config import Settings
from penstock.errors import JobGone, UnknownJob
from penstock.jobs import TERMINAL, JobKey, State
from penstock.storage import records
from penstock.storage.base import ObjectStore

#: How old an object must be before anything is said against it: whoever wrote it may still be on the way.
GRACE_S = 86_400.0

_UPLOAD = re.compile(r"tenants/[^/]+/uploads/[^/]+/")
_ATTEMPT = re.compile(r"tenants/(?P<tenant>[^/]+)/jobs/(?P<id>[^/]+)/attempts/(?P<fence>\d+)/")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Tidied:
    """How many drafts, uploads and attempts went."""

    drafts: int
    uploads: int
    attempts: int


def tidy(store: records.Runs, objects: ObjectStore, settings: Settings, *, at: float | None = None) -> Tidied:
    """Delete what is left over, at the time `at` (seconds since the epoch; now)."""
    now = time.time() if at is None else at
    uploads: list[str] = []
    attempts: dict[str, tuple[JobKey, int]] = {}
    for info in objects.list("tenants/"):
        age_s = now - info.modified_s
        if _UPLOAD.match(info.key) and age_s > settings.retention_s:
            uploads.append(info.key)
        elif (found := _ATTEMPT.match(info.key)) and age_s > GRACE_S:
            attempts[found[0]] = JobKey(found["tenant"], found["id"]), int(found["fence"])
    orphans = [prefix for prefix, (key, fence) in attempts.items() if _orphaned(store, key, fence)]
    for key in uploads:
        objects.delete(key)
    for prefix in orphans:
        objects.delete_prefix(prefix)
    tidied = Tidied(objects.sweep(older_than_s=GRACE_S), len(uploads), len(orphans))
    if tidied != Tidied(0, 0, 0):
        log.info("keeper.tidied", drafts=tidied.drafts, uploads=tidied.uploads, attempts=tidied.attempts)
    return tidied


def _orphaned(store: records.Runs, key: JobKey, fence: int) -> bool:
    """Whether an attempt's artifacts are not, and will never be, its job's result."""
    try:
        job = store.run(records.read(key))
    except (UnknownJob, JobGone):
        return True
    if job.fence != fence:
        return True
    return job.state in TERMINAL and job.state is not State.SUCCEEDED
