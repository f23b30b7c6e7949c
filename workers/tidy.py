"""What nobody will ask for any more: drafts of dead writers, old uploads, artifacts that will never be visible."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import structlog

from penstock.batches import BatchKey
from penstock.config import Settings
from penstock.errors import JobGone, UnknownJob
from penstock.jobs import TERMINAL, JobKey, State
from penstock.storage import batch_manifests, journal, records
from penstock.storage.base import ObjectInfo, ObjectStore
from penstock.storage.endpoints import EndpointKey, endpoint_in, find_endpoint, forget
from penstock.storage.journal import Journal
from penstock.storage.manifests import read_ending

#: How old an object must be before anything is said against it: whoever wrote it may still be on the way.
GRACE_S = 86_400.0
#: How long it is remembered that a webhook endpoint was deleted: longer than anything for it is on the way.
DELETED_S = 8 * 86_400.0

_UPLOAD = re.compile(r"tenants/[^/]+/uploads/[^/]+/")
_ATTEMPT = re.compile(r"tenants/(?P<tenant>[^/]+)/jobs/(?P<id>[^/]+)/attempts/(?P<fence>\d+)/")
_CHECKPOINT = re.compile(r"tenants/(?P<tenant>[^/]+)/jobs/(?P<id>[^/]+)/checkpoints/")
_BATCH = re.compile(r"tenants/(?P<tenant>[^/]+)/batches/(?P<id>[^/]+)/")
_MANIFEST = re.compile(r"tenants/(?P<tenant>[^/]+)/jobs/(?P<id>[^/]+)/(?:request|outcome|cancel)\.json")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Tidied:
    """How many drafts, uploads, attempts, outcomes, jobs' checkpoints, revisions of endpoints and batches went.

    A batch goes that nobody accepted.
    """

    drafts: int = 0
    uploads: int = 0
    attempts: int = 0
    outcomes: int = 0
    checkpoints: int = 0
    revisions: int = 0
    batches: int = 0


@dataclass(slots=True)
class _Seen:
    """What a listing shows that may be left over."""

    uploads: list[str] = field(default_factory=list)
    attempts: dict[str, tuple[JobKey, int]] = field(default_factory=dict)
    jobs: dict[JobKey, list[str]] = field(default_factory=dict)
    saved: set[JobKey] = field(default_factory=set)
    revisions: dict[EndpointKey, list[ObjectInfo]] = field(default_factory=dict)
    batches: set[BatchKey] = field(default_factory=set)

    def take(self, info: ObjectInfo, age_s: float, settings: Settings) -> None:
        """Note an object."""
        if _UPLOAD.match(info.key) and age_s > settings.retention_s:
            self.uploads.append(info.key)
        elif (found := _ATTEMPT.match(info.key)) and age_s > GRACE_S:
            self.attempts[found[0]] = _job_in(found), int(found["fence"])
        elif found := _CHECKPOINT.match(info.key):
            self.saved.add(_job_in(found))
        elif (found := _BATCH.match(info.key)) and age_s > GRACE_S:
            self.batches.add(BatchKey(found["tenant"], found["id"]))
        elif (found := _MANIFEST.fullmatch(info.key)) and age_s > GRACE_S:
            self.jobs.setdefault(_job_in(found), []).append(info.key)
        elif (endpoint := endpoint_in(info.key)) is not None:
            self.revisions.setdefault(endpoint, []).append(info)


def tidy(store: records.Runs, objects: ObjectStore, settings: Settings, *, at: float | None = None) -> Tidied:
    """Delete what is left over, at the time `at` (seconds since the epoch; now).

    A manifest whose job Redis does not know is no left-over: its job is made anew.
    """
    now = time.time() if at is None else at
    seen = _Seen()
    for info in objects.list("tenants/"):
        seen.take(info, now - info.modified_s, settings)
    orphans = [prefix for prefix, (key, fence) in seen.attempts.items() if _orphaned(store, objects, key, fence)]
    outcomes = [name for key, names in seen.jobs.items() if not _known(store, objects, key) for name in names]
    replaced = [name for key, infos in seen.revisions.items() for name in _useless(store, objects, key, infos, now)]
    useless = [key.checkpoints for key in seen.saved if _over(store, objects, key)]
    for name in seen.uploads + outcomes + replaced:
        objects.delete(name)
    unasked = [key.prefix for key in seen.batches if batch_manifests.read_manifest(objects, key) is None]
    for prefix in orphans + useless + unasked:
        objects.delete_prefix(prefix)
    counts = map(len, (seen.uploads, orphans, outcomes, useless, replaced, unasked))
    tidied = Tidied(objects.sweep(older_than_s=GRACE_S), *counts)
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


def _useless(
    store: records.Runs, objects: ObjectStore, key: EndpointKey, infos: Sequence[ObjectInfo], now: float
) -> list[str]:
    """Return an endpoint's revisions that nobody needs: replaced ones, and the last one of an endpoint long deleted."""
    old = [info.key for info in infos[:-1] if now - info.modified_s > GRACE_S]
    if now - infos[-1].modified_s < DELETED_S or len(old) < len(infos) - 1:
        return old
    found = find_endpoint(objects, key)
    if found is None or not found.deleted:
        return old
    store.run(forget(key))
    return [*old, infos[-1].key]


def _over(store: records.Runs, objects: ObjectStore, key: JobKey) -> bool:
    """Whether no further attempt of a job will come."""
    try:
        return Journal(store, objects).run(journal.read(key)).state in TERMINAL
    except (UnknownJob, JobGone):
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
