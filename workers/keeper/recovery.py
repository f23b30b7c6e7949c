"""Recovery: restores jobs from their manifests, and webhook endpoints, after Redis lost all or some of them."""

from __future__ import annotations

import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from itertools import compress, groupby, islice
from typing import TypeAlias, TypeVar

import structlog

from penstock.batches import BatchKey
from penstock.errors import JobGone, PenstockError, RecordTooNew
from penstock.jobs import JobKey
from penstock.storage.journal import answered, batch_journal, batch_manifests, journal, queue_modes, usage_ledger
from penstock.storage.journal.endpoints import EndpointKey, endpoint_in, find_endpoint, publish
from penstock.storage.journal.journal import Flow, Journal
from penstock.storage.journal.manifests import StoredOutcome, ended_prefix, marks, read_outcome, request_of
from penstock.storage.objects.base import ObjectInfo, ObjectStore
from penstock.storage.redis import records, upkeep, usage
from penstock.storage.redis.deliveries import announce_again
from penstock.storage.redis.scripts import run_each

T = TypeVar("T")
#: A job or batch, and True if its end is stored.
Row: TypeAlias = tuple[JobKey | BatchKey, bool]

#: Jobs restored at once: each waits for the object store most of the time.
CONCURRENCY = 32
#: Jobs and batches looked up in one step.
LOOKED_UP = 500
#: Jobs of a listing that one thread restores together, the ended ones by one message to Redis.
TOGETHER = 8
#: Seconds by which the clocks of a store's machines may differ.
CLOCKS_S = 60.0
#: Events announced to endpoints in one step.
ANNOUNCED = 500

log = structlog.get_logger(__name__)


def recover(store: records.Runs, objects: ObjectStore) -> int:
    """Restore every job and batch that Redis lacks, as `restore`; return the number of manifests that were checked.

    All webhook endpoints receive the events that they missed, also of jobs that another process has restored.
    """
    found, _ = _restore(store, objects)
    _announce(store)
    return found


def recover_if_lost(store: records.Runs, objects: ObjectStore) -> None:
    """Recover an emptied Redis, which lacks the marker of the last recovery; restore what one with older data lacks.

    A server may have older data when it has started anew, from a copy of its log or as a promoted replica.
    """
    seen = store.run(upkeep.witness())
    Journal(store, objects).run(queue_modes.restore())  # before there is a job to claim
    if not seen.alive:
        who = uuid.uuid4().hex
        store.run(upkeep.recovering(who, begin=True))
        found = recover(store, objects)
        ended = store.run(upkeep.recovering(who, begin=False))
        log.info("jobs.recovered", found=found, ended=ended)
    elif not seen.compared:
        # Before jobs are restored: purged jobs in older data must not run again.
        usage_ledger.fold_all(store, objects, usage.tenants_that_keep(store))
        log.info("jobs.compared", restored=restore(store, objects))
    if not (seen.alive and seen.compared):
        store.run(upkeep.compared(seen.run))


def restore(store: records.Runs, objects: ObjectStore) -> int:
    """Restore the jobs and batches that Redis lacks, marked jobs first; return their number.

    Those that it has are only looked up, hundreds at once. A tenant's webhook endpoints are published to Redis before
    its jobs, so that they receive the events of restored jobs; afterwards they receive the events that they missed.
    Safe to repeat, at any time and by several keepers at once.
    """
    _, restored = _restore(store, objects)
    if restored:
        _announce(store)
    return restored


def _restore(store: records.Runs, objects: ObjectStore) -> tuple[int, int]:
    """Return the numbers of manifests and of those that were restored."""
    both_stores = Journal(store, objects)
    tenants: set[str] = set()  # with stored sums of usage
    listed = Counter[bool]()

    def counted() -> Iterator[Row]:
        for key, over in _listed(store, objects, tenants):
            listed[over] += 1
            yield key, over

    with ThreadPoolExecutor(CONCURRENCY, thread_name_prefix="restore") as pool:
        marked = _lost(store, ((key, False) for key in _marked(store, objects)))
        restored = sum(_mapped(pool, lambda row: both_stores.run(_restored(*row)), marked))
        lost = _groups(_lost(store, counted()), TOGETHER)
        restored += sum(_mapped(pool, lambda rows: _restored_together(both_stores, rows), lost))
    usage_ledger.fold_all(store, objects, tenants)
    return listed.total(), restored


def _marked(store: records.Runs, objects: ObjectStore) -> Iterator[JobKey]:
    """Yield the jobs that are marked as live. A tenant's first one comes when Redis knows its receivers."""
    for tenant, of_tenant in groupby(marks(objects), key=lambda mark: mark.key.tenant):
        found = list(of_tenant)
        _know_receivers(store, objects, tenant, since_s=min(mark.put_s for mark in found) - CLOCKS_S)
        yield from (mark.key for mark in found)


def _know_receivers(store: records.Runs, objects: ObjectStore, tenant: str, *, since_s: float) -> None:
    """Publish a tenant's webhook endpoints, and note the deliveries that were answered since this time."""
    for info in objects.list(f"tenants/{tenant}/answered/"):
        if info.modified_s >= since_s:
            answered.load(store, objects, info.key)
    for info in objects.list(f"tenants/{tenant}/endpoints/"):
        if (endpoint := endpoint_in(info.key)) is not None:
            _publish(store, objects, endpoint)


def _lost(store: records.Runs, rows: Iterator[Row]) -> Iterator[Row]:
    """Yield the jobs and batches whose record in Redis is missing or older than their manifests (`upkeep.stale`)."""
    for group in _groups(rows, LOOKED_UP):
        is_stale = store.run(upkeep.stale(group))
        yield from compress(group, is_stale)


def _groups(each: Iterator[T], size: int) -> Iterator[list[T]]:
    """Yield groups of this size; the last one may be smaller."""
    while group := list(islice(each, size)):
        yield group


def _mapped(pool: Executor, act: Callable[[T], int], each: Iterator[T]) -> Iterator[int]:
    """Yield results in order. `pool.map` would read all items first, and there may be a million."""
    pending: deque[Future[int]] = deque()
    for one in each:
        pending.append(pool.submit(act, one))
        if len(pending) > 2 * CONCURRENCY:
            yield pending.popleft().result()
    for future in pending:
        yield future.result()


def _announce(store: records.Runs) -> None:
    while store.run(announce_again(ANNOUNCED)) == ANNOUNCED:
        pass


def _listed(store: records.Runs, objects: ObjectStore, tenants: set[str]) -> Iterator[Row]:
    """Yield the rows of `_manifests`; publish endpoints and note answered deliveries on the way.

    Tenants with stored sums of usage are added to `tenants`.
    """

    def passed(infos: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
        for info in infos:
            if (endpoint := endpoint_in(info.key)) is not None:
                _publish(store, objects, endpoint)
            elif (stored := usage_ledger.usage_in(info.key)) is not None:
                tenants.add(stored[0])
            elif answered.answered_in(info.key) is not None:
                answered.load(store, objects, info.key)
            yield info

    return _manifests(passed(objects.list("tenants/")))


def _manifests(infos: Iterator[ObjectInfo]) -> Iterator[Row]:
    """Yield the jobs and batches that have a manifest, with True where their end is stored.

    A listing is sorted by key: a tenant's `answered/` and `endpoints/` come before its `jobs/`, a job's outcome before
    its request.
    """
    end = None
    for info in infos:
        end = ended_prefix(info.key) or end
        key = request_of(info.key) or batch_manifests.request_of(info.key)
        if key is not None:
            yield key, end == key.prefix


def _restored(key: JobKey | BatchKey, ended: bool) -> Flow[bool]:
    """Restore a job or batch; leave one of a format that cannot be read to a newer keeper."""
    try:
        if isinstance(key, BatchKey):
            return (yield from batch_journal.revive(key))
        return (yield from (journal.restore_end(key) if ended else journal.revive_live(key)))
    except RecordTooNew as error:
        log.warning("record.skipped", detail=error.detail)
        return False


def _restored_together(both_stores: Journal, rows: Sequence[Row]) -> int:
    """Restore jobs and batches, the ended jobs by one message to Redis; return the number."""
    commits: list[records.Command[None]] = []
    restored = 0
    for key, ended in rows:
        if ended and isinstance(key, JobKey) and (outcome := _outcome(both_stores.objects, key)) is not None:
            commits.append(records.commit_end(key, outcome.text))
        else:
            restored += both_stores.run(_restored(key, ended))
    for reply in run_each(both_stores.store, commits):
        if isinstance(reply, PenstockError) and not isinstance(reply, JobGone):
            raise reply
        restored += reply is None
    return restored


def _outcome(objects: ObjectStore, key: JobKey) -> StoredOutcome | None:
    """Return a job's outcome; None where there is none that can be read."""
    try:
        return read_outcome(objects, key)
    except RecordTooNew:
        return None


def _publish(store: records.Runs, objects: ObjectStore, key: EndpointKey) -> None:
    try:
        store.run(publish(key, find_endpoint(objects, key)))
    except RecordTooNew as error:
        log.warning("endpoint.skipped", detail=error.detail)
