"""Making jobs anew from their manifests, and telling Redis of webhook endpoints, after it was emptied."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import structlog

from penstock.batches import BatchKey
from penstock.jobs import JobKey
from penstock.storage import batch_journal, batch_manifests, journal, records
from penstock.storage.base import ObjectStore
from penstock.storage.deliveries import announce_again
from penstock.storage.endpoints import endpoint_in, find_endpoint, publish
from penstock.storage.journal import Flow, Journal
from penstock.storage.manifests import request_of

#: Jobs that are made anew at a time: each waits for the object store, not for us.
CONCURRENCY = 16
#: Events that endpoints are told of in one step.
ANNOUNCED = 500

log = structlog.get_logger(__name__)


def recover(store: records.Runs, objects: ObjectStore) -> int:
    """Make every job and batch anew that has a manifest and no record; return how many were looked at.

    Those that were over are so again.

    Redis is told of the webhook endpoints before, so that they are told of the ends that it learns of again; and then
    they are told of what happened while it did not know them. Safe to repeat, at any time and by several at once.
    """
    desk = Journal(store, objects)
    with ThreadPoolExecutor(CONCURRENCY, thread_name_prefix="recover") as pool:
        found = sum(pool.map(lambda key: desk.run(_revived(key)), _requests(store, objects)))
    while store.run(announce_again(ANNOUNCED)) == ANNOUNCED:
        pass
    return found


def recover_if_emptied(store: records.Runs, objects: ObjectStore) -> None:
    """Recover where the marker of an earlier recovery is missing, and set it: the next emptied Redis lacks it again."""
    if store.run(records.alive()):
        return
    who = uuid.uuid4().hex
    store.run(records.recovering(who, begin=True))
    found = recover(store, objects)
    ended = store.run(records.recovering(who, begin=False))
    log.info("jobs.recovered", found=found, ended=ended)


def _requests(store: records.Runs, objects: ObjectStore) -> Iterator[JobKey | BatchKey]:
    """Yield the jobs and batches that have a manifest; before a tenant's jobs, tell Redis of the tenant's endpoints.

    A listing is in the order of its keys: `endpoints/` comes before `jobs/`.
    """
    for info in objects.list("tenants/"):
        key = request_of(info.key) or batch_manifests.request_of(info.key)
        if key is not None:
            yield key
        elif (endpoint := endpoint_in(info.key)) is not None:
            store.run(publish(endpoint, find_endpoint(objects, endpoint)))


def _revived(key: JobKey | BatchKey) -> Flow[bool]:
    return batch_journal.revive(key) if isinstance(key, BatchKey) else journal.revive(key)
