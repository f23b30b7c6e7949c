"""Making jobs anew from their manifests: after Redis was emptied, and for whatever else it has lost."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import structlog

from penstock.jobs import JobKey
from penstock.storage import journal, records
from penstock.storage.base import ObjectStore
from penstock.storage.journal import Journal
from penstock.storage.manifests import request_of

#: Jobs that are made anew at a time: each waits for the object store, not for us.
CONCURRENCY = 16

log = structlog.get_logger(__name__)


def recover(store: records.Runs, objects: ObjectStore) -> int:
    """Make every job anew that has a manifest and no record, ended ones as they ended; return how many were looked at.

    Safe to repeat, at any time and by several at once.
    """
    desk = Journal(store, objects)
    with ThreadPoolExecutor(CONCURRENCY, thread_name_prefix="recover") as pool:
        return sum(pool.map(lambda key: desk.run(journal.revive(key)), requests(objects)))


def recover_if_emptied(store: records.Runs, objects: ObjectStore) -> None:
    """Recover where the marker of an earlier recovery is missing, and set it: the next emptied Redis lacks it again."""
    if store.run(records.alive()):
        return
    who = uuid.uuid4().hex
    store.run(records.recovering(who, begin=True))
    found = recover(store, objects)
    ended = store.run(records.recovering(who, begin=False))
    log.info("jobs.recovered", found=found, ended=ended)


def requests(objects: ObjectStore) -> Iterator[JobKey]:
    """Yield the jobs that have a manifest."""
    return (key for info in objects.list("tenants/") if (key := request_of(info.key)) is not None)
