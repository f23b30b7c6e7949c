"""Retention: deletes files of interrupted writers, old uploads, and artifacts that will never be visible."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta

import structlog

from penstock.batches import BatchKey
from penstock.config import Settings
from penstock.errors import JobGone, RecordTooNew, UnknownJob
from penstock.formats import RUNS
from penstock.jobs import TERMINAL, JobKey, State
from penstock.storage.journal import batch_manifests, journal
from penstock.storage.journal.answered import answered_in
from penstock.storage.journal.endpoints import EndpointKey, endpoint_in, find_endpoint, forget
from penstock.storage.journal.journal import Journal
from penstock.storage.journal.manifests import marks, read_outcome, unmark
from penstock.storage.journal.usage_ledger import compact, usage_in
from penstock.storage.objects.base import ObjectInfo, ObjectStore
from penstock.storage.redis import records, upkeep, usage

#: Minimum age in seconds of an object before it may be deleted as a leftover: its writer may still be at work.
GRACE_S = 86_400.0
#: Seconds between two deletions of leftovers.
EVERY_S = 3600.0
#: Seconds that the deletion of a webhook endpoint is remembered: longer than any of its deliveries takes.
DELETED_S = 8 * 86_400.0
#: Seconds for which answered deliveries are known: no older end of a job is announced again.
ANSWERED_S = records.ANNOUNCE_AGAIN_S + GRACE_S
#: Age in seconds up to which a copy of Redis's data may be restored and runs no purged job again.
TOMBSTONES_S = 2 * 86_400.0

_UPLOAD = re.compile(r"tenants/[^/]+/uploads/[^/]+/")
_ATTEMPT = re.compile(r"tenants/(?P<tenant>[^/]+)/jobs/(?P<id>[^/]+)/attempts/(?P<fence>\d+)/")
_CHECKPOINT = re.compile(r"tenants/(?P<tenant>[^/]+)/jobs/(?P<id>[^/]+)/checkpoints/")
_BATCH = re.compile(r"tenants/(?P<tenant>[^/]+)/batches/(?P<id>[^/]+)/")
_MANIFEST = re.compile(r"tenants/(?P<tenant>[^/]+)/jobs/(?P<id>[^/]+)/(?:request|outcome|cancel)\.json")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The numbers of deleted files of interrupted puts, uploads, attempts, outcomes, checkpoints, and so on.

    A batch is deleted if its submission was never completed, the mark of a live job if there is no such job.
    """

    partial_files: int = 0
    uploads: int = 0
    attempts: int = 0
    outcomes: int = 0
    checkpoints: int = 0
    revisions: int = 0
    batches: int = 0
    marks: int = 0


@dataclass(slots=True)
class _Listing:
    """The possible leftovers in a listing."""

    uploads: list[str] = field(default_factory=list)
    attempts: dict[str, tuple[JobKey, int]] = field(default_factory=dict)
    jobs: dict[JobKey, list[str]] = field(default_factory=dict)
    saved: set[JobKey] = field(default_factory=set)
    revisions: dict[EndpointKey, list[ObjectInfo]] = field(default_factory=dict)
    batches: set[BatchKey] = field(default_factory=set)
    #: Bytes of the objects of each tenant.
    kept: Counter[str] = field(default_factory=Counter)
    #: Marks of old deliveries, which would not be sent again after a loss of Redis.
    answered: list[str] = field(default_factory=list)
    #: Tenants with stored sums of usage.
    metered: set[str] = field(default_factory=set)

    def add(self, info: ObjectInfo, age_s: float, settings: Settings) -> None:
        """Add an object of the listing."""
        self.kept[info.key.split("/", 2)[1]] += info.size_bytes
        if (metered := usage_in(info.key)) is not None:
            self.metered.add(metered[0])
        elif answered_in(info.key) is not None:
            self.answered += [info.key] if age_s > ANSWERED_S else []
        elif _UPLOAD.match(info.key) and age_s > settings.retention_s:
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


def delete_leftovers(
    store: records.Runs, objects: ObjectStore, settings: Settings, *, at: float | None = None
) -> Leftovers:
    """Delete leftovers, at the time `at` (seconds since the epoch; default: now).

    The manifest of a job unknown to Redis is no leftover: its job is restored.
    """
    now = time.time() if at is None else at
    listing = _Listing()
    for info in objects.list("tenants/"):
        listing.add(info, now - info.modified_s, settings)
    orphans = [prefix for prefix, (key, fence) in listing.attempts.items() if _orphaned(store, objects, key, fence)]
    outcomes = [name for key, names in listing.jobs.items() if not _known(store, objects, key) for name in names]
    replaced = [
        name for key, infos in listing.revisions.items() for name in _old_revisions(store, objects, key, infos, now)
    ]
    checkpoints = [key.checkpoints for key in listing.saved if _over(store, objects, key)]
    objects.delete_many(listing.uploads + outcomes + replaced + listing.answered)
    unaccepted = [key.prefix for key in listing.batches if not _accepted(objects, key)]
    marked = (each.key for each in marks(objects) if now - each.put_s > GRACE_S)
    over = [key for key in marked if _over(store, objects, key)]
    for prefix in orphans + checkpoints + unaccepted:
        objects.delete_prefix(prefix)
    for key in over:
        unmark(objects, key)
    found = (listing.uploads, orphans, outcomes, checkpoints, replaced, unaccepted, over)
    _settle_usage(store, objects, settings, listing, now)
    deleted = Leftovers(objects.sweep(older_than_s=GRACE_S), *(len(each) for each in found))
    if deleted != Leftovers():
        log.info("keeper.leftovers_deleted", **asdict(deleted))
    return deleted


def delete_leftovers_when_due(store: records.Runs, objects: ObjectStore, settings: Settings) -> None:
    """Delete leftovers unless a keeper did so in the last `EVERY_S` seconds, and note that in Redis."""
    if not store.run(upkeep.tidied()):
        delete_leftovers(store, objects, settings)
        store.run(upkeep.note_tidied(EVERY_S))


def _settle_usage(store: records.Runs, objects: ObjectStore, settings: Settings, listing: _Listing, now: float) -> None:
    """Note what the tenants keep, compact their stored sums of usage, and delete the sums of old days."""
    for tenant in listing.kept.keys() | usage.tenants_that_keep(store):
        store.run(usage.note_kept(tenant, listing.kept[tenant]))
    first = usage.day_at(now) - timedelta(days=settings.usage_days)
    for tenant in listing.metered:
        compact(store, objects, tenant, first_day=first, before_s=now - TOMBSTONES_S)
    while store.run(usage.trim(first)):
        pass


def _job_in(found: re.Match[str]) -> JobKey:
    return JobKey(found["tenant"], found["id"])


def _known(store: records.Runs, objects: ObjectStore, key: JobKey) -> bool:
    """Return True if a job has a record, restored if necessary. An outcome without a record is a leftover."""
    try:
        Journal(store, objects).run(journal.read(key))
    except (UnknownJob, JobGone):
        return False
    except RecordTooNew:
        return True
    return True


def _accepted(objects: ObjectStore, key: BatchKey) -> bool:
    """Return True if a batch has a manifest, whether or not it can be read here."""
    try:
        return batch_manifests.read_manifest(objects, key) is not None
    except RecordTooNew:
        return True


def _old_revisions(
    store: records.Runs, objects: ObjectStore, key: EndpointKey, infos: Sequence[ObjectInfo], now: float
) -> list[str]:
    """Return an endpoint's unneeded revisions: replaced ones, and the last one if the endpoint was deleted long ago."""
    old = [info.key for info in infos[:-1] if now - info.modified_s > GRACE_S]
    if now - infos[-1].modified_s < DELETED_S or len(old) < len(infos) - 1:
        return old
    try:
        found = find_endpoint(objects, key)
    except RecordTooNew:
        return []
    if found is None or not found.deleted:
        return old
    store.run(forget(key))
    return [*old, infos[-1].key]


def _over(store: records.Runs, objects: ObjectStore, key: JobKey) -> bool:
    """Return True if a job can have no further attempt."""
    try:
        return Journal(store, objects).run(journal.read(key)).state in TERMINAL
    except (UnknownJob, JobGone):
        return True
    except RecordTooNew:
        return False


def _orphaned(store: records.Runs, objects: ObjectStore, key: JobKey, fence: int) -> bool:
    """Return True if an attempt's artifacts are not, and will never be, its job's result.

    Only a release that can run the job knows what belongs to its result.
    """
    try:
        job = Journal(store, objects).run(journal.read(key))
    except (UnknownJob, JobGone):
        return True
    except RecordTooNew:
        return False
    if job.submission.version > RUNS or job.state is State.OTHER:
        return False
    if job.state in TERMINAL:
        return job.state is not State.SUCCEEDED or job.fence != fence
    # A lost attempt may have ended the job without a record in Redis yet.
    outcome = read_outcome(objects, key)
    return job.fence != fence and (outcome is None or outcome.fence != fence)
