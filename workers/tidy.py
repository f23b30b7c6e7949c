"""What nobody will ask for any more: drafts of dead writers, old uploads, artifacts that will never be visible."""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass

import structlog

from penstock.config import Settings
from penstock.errors import JobGone, UnknownJob
from penstock.jobs import TERMINAL, JobKey, State
from penstock.storage import journal, records
from penstock.storage.base import ObjectStore
from penstock.storage.journal import Journal
from penstock.storage.manifests import read_ending

#: How old an object must be before anything is said against it: whoever wrote it may still be on the way.
GRACE_S = 86_400.0

_UPLOAD = re.compile(r"tenants/[^/]+/uploads/[^/]+/")
_ATTEMPT = re.compile(r"tenants/(?P<tenant>[^/]+)/jobs/(?P<id>[^/]+)/attempts/(?P<fence>\d+)/")
_MANIFEST = re.compile(r"tenants/(?P<tenant>[^/]+)/jobs/(?P<id>[^/]+)/(?:request|outcome)\.json")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Tidied:
    """How many drafts, uploads, attempts and outcomes went."""

    drafts: int = 0
    uploads: int = 0
    attempts: int = 0
    outcomes: int = 0


def tidy(store: records.Runs, objects: ObjectStore, settings: Settings, *, at: float | None = None) -> Tidied:
    """Delete what is left over, at the time `at` (seconds since the epoch; now).

    A manifest whose job Redis does not know is no left-over: its job is made anew.
    """
    now = time.time() if at is None else at
    uploads: list[str] = []
    attempts: dict[str, tuple[JobKey, int]] = {}
    jobs: dict[JobKey, list[str]] = {}
    for info in objects.list("tenants/"):
        age_s = now - info.modified_s
        if _UPLOAD.match(info.key) and age_s > settings.retention_s:
            uploads.append(info.key)
        elif (found := _ATTEMPT.match(info.key)) and age_s > GRACE_S:
            attempts[found[0]] = _job_in(found), int(found["fence"])
        elif (found := _MANIFEST.fullmatch(info.key)) and age_s > GRACE_S:
            jobs.setdefault(_job_in(found), []).append(info.key)
    orphans = [prefix for prefix, (key, fence) in attempts.items() if _orphaned(store, objects, key, fence)]
    outcomes = [name for key, names in jobs.items() if not _known(store, objects, key) for name in names]
    for name in uploads + outcomes:
        objects.delete(name)
    for prefix in orphans:
        objects.delete_prefix(prefix)
    tidied = Tidied(objects.sweep(older_than_s=GRACE_S), len(uploads), len(orphans), len(outcomes))
    if tidied != Tidied():
        log.info("keeper.tidied", **asdict(tidied))
    return tidied


def _job_in(found: re.Match[str]) -> JobKey:
    return JobKey(found["tenant"], found["id"])


def _known(store: records.Runs, objects: ObjectStore, key: JobKey) -> bool:
    """Whether a job has a record, made anew if need be. Without one, its outcome is of a job that nobody accepted."""
    try:
        Journal(store, objects).run(journal.read(key))
    except (UnknownJob, JobGone):
        return False
    return True


def _orphaned(store: records.Runs, objects: ObjectStore, key: JobKey, fence: int) -> bool:
    """Whether an attempt's artifacts are not, and will never be, its job's result."""
    try:
        job = Journal(store, objects).run(journal.read(key))
    except (UnknownJob, JobGone):
        return True
    if job.state in TERMINAL:
        return job.state is not State.SUCCEEDED or job.fence != fence
    # A lost attempt may have ended the job, and Redis may not know it yet.
    ending = read_ending(objects, key)
    return job.fence != fence and (ending is None or ending.fence != fence)
