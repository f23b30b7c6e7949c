"""Purging: deletes ended jobs and batches whose retention is over, in bounded steps."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from penstock.jobs import JobKey
from penstock.storage.journal import batch_manifests, usage_ledger
from penstock.storage.objects.base import ObjectStore
from penstock.storage.redis import batches, chains, records, upkeep
from penstock.storage.redis.usage import job_usage

#: Jobs of one step: a keeper that stops waits for one step.
STEP_JOBS = 200

log = structlog.get_logger(__name__)


def retire(store: records.Runs, objects: ObjectStore) -> bool:
    """Delete jobs whose retention is over, at most `STEP_JOBS`; return True while more may be due.

    Nothing is deleted during a recovery, because Redis would not know all followers.
    """
    if not store.run(upkeep.alive()):
        return False
    due = store.run(upkeep.retired(STEP_JOBS))
    if not due:
        return False
    purged = len(due) - len(purge(store, objects, due))
    log.info("jobs.purged", count=purged, first=str(due[0]))
    return purged > 0 and len(due) == STEP_JOBS


def retire_batches(store: records.Runs, objects: ObjectStore) -> bool:
    """Delete batches that were deleted or whose retention is over: first their jobs, then the batches.

    Return True while more may be due: one call deletes about `STEP_JOBS` jobs. Nothing is deleted during a recovery,
    because Redis would not know all members.
    """
    if not store.run(upkeep.alive()):
        return False
    purged = 0
    for key in store.run(batches.retired()):
        members = store.run(batches.members(key, STEP_JOBS))
        left = purge(store, objects, members)
        purged += len(members) - len(left)
        if purged >= STEP_JOBS:
            return True
        if left or len(members) == STEP_JOBS:
            continue  # members that cannot be deleted yet
        batch_manifests.delete_objects(objects, key)
        store.run(batches.forget(key, purged=True))
        log.info("batch.purged", batch=str(key))
    return False


def purge(store: records.Runs, objects: ObjectStore, keys: Sequence[JobKey]) -> tuple[JobKey, ...]:
    """Delete the objects of jobs, then their records; return the jobs that have no record or have not ended.

    Jobs that live followers wait for, or whose files they read, are left too, and purged later. The usage of the others
    is stored first, because it was only in their outcomes.
    """
    followed = store.run(chains.followed(keys))
    keys = [key for key in keys if key not in followed]
    jobs = store.run(job_usage(keys))
    steps = usage_ledger.delete_objects(objects, keys, jobs)
    left = tuple(key for some in _chunks(keys, upkeep.FORGOTTEN_AT_ONCE) for key in store.run(upkeep.purge(some)))
    for step in steps:
        store.run(usage_ledger.fold(step))
    return (*left, *followed)


def _chunks(keys: Sequence[JobKey], size: int) -> list[Sequence[JobKey]]:
    return [keys[first : first + size] for first in range(0, len(keys), size)]
