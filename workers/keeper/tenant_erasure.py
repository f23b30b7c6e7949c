"""Erasure of a tenant: deletes its data from both stores, and checks afterwards that nothing is left.

Order: revoke its API keys, so that no request arrives; end its batches and jobs, so that no job runs; delete its
objects and records; delete its other keys in Redis. Every step may be repeated: run an interrupted erasure again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from penstock.api_keys import KeyRecord
from penstock.batches import BatchKey
from penstock.config import Settings
from penstock.errors import BatchGone, ConfigError, JobGone, StateConflict, UnknownBatch, UnknownJob
from penstock.jobs import JobKey
from penstock.storage.journal import batch_journal, batch_manifests, journal
from penstock.storage.journal.api_keys import delete_key, revoke_key
from penstock.storage.journal.journal import Journal
from penstock.storage.journal.manifests import marks_of
from penstock.storage.journal.subscriptions import subscriber_key
from penstock.storage.objects.base import ObjectStore
from penstock.storage.redis import batches, tenant_data
from penstock.storage.redis.scripts import Runs
from penstock.workers.keeper.purge import purge
from penstock.workers.keeper.tenant_export import key_rows

#: Seconds for which an API process may still accept a key that was revoked (`penstock.api.keyring`).
KEY_S = 5.0
#: Seconds to wait for running jobs: longer than the lease of a dead worker and the keeper's next sweep.
JOBS_S = 60.0
_POLL_S = 0.2

Tell = Callable[[str], object]


@dataclass(slots=True)
class Erasure:
    """Counts of the removed items, and the items that are left: none after a successful erasure."""

    tenant: str
    api_keys: int = 0
    canceled_jobs: int = 0
    jobs: int = 0
    batches: int = 0
    objects: int = 0
    redis_keys: int = 0
    left: list[str] = field(default_factory=list)


def erase_tenant(
    store: Runs, objects: ObjectStore, settings: Settings, tenant: str, *, tell: Tell = lambda _: None,
    key_s: float = KEY_S, jobs_s: float = JOBS_S,
) -> Erasure:  # fmt: skip
    """Delete all data of a tenant, and return the report.

    Raises `ConfigError` while a drop rule makes jobs for the tenant, `StateConflict` if its jobs do not end in time.
    """
    rules = [rule.name for rule in settings.drops if rule.tenant == tenant]
    if rules:
        raise ConfigError(f"the drop rules {', '.join(rules)} make jobs of tenant {tenant}: remove them first")
    done = Erasure(tenant)
    objects.delete(subscriber_key(tenant))  # so that the keeper makes no further jobs of its subscriptions
    keys = _revoke(objects, tenant, tell, key_s)
    both = Journal(store, objects)
    found = store.run(tenant_data.batches_of(tenant))
    _end_batches(both, found)
    _end_jobs(both, tenant, done, tell, jobs_s)
    _purge_jobs(store, objects, tenant, done, tell)
    for key in found:
        batch_manifests.delete_objects(objects, key)
        store.run(batches.forget(key, purged=True))
    done.batches = len(found)
    prefix = f"tenants/{tenant}/"
    done.objects = objects.delete_prefix(prefix) + objects.abort_multiparts(prefix)
    objects.delete_prefix(marks_of(tenant))
    for record in keys:
        delete_key(objects, record.id)
    done.api_keys = len(keys)
    left = tenant_data.traces(store, tenant)
    tenant_data.delete(store, tenant, left)
    done.redis_keys = len(left.keys) + len(left.members)
    done.left = what_is_left(store, objects, tenant)
    return done


def what_is_left(store: Runs, objects: ObjectStore, tenant: str) -> list[str]:
    """Return a line for everything in both stores that names the tenant.

    Unfinished multipart uploads are aborted, because a store counts them only while it aborts them.
    """
    prefix = f"tenants/{tenant}/"
    places = (prefix, subscriber_key(tenant), marks_of(tenant))
    lines = [f"object {info.key}" for place in places for info in objects.list(place)]
    if dropped := objects.abort_multiparts(prefix):
        lines.append(f"{dropped} unfinished uploads in parts, which are dropped now")
    lines += [f"API key {record.id}" for record in key_rows(objects, tenant)]
    return lines + [f"Redis {word}" for word in tenant_data.traces(store, tenant).words]


def _revoke(objects: ObjectStore, tenant: str, tell: Tell, key_s: float) -> list[KeyRecord]:
    records, now_s = key_rows(objects, tenant), time.time()
    active = [record for record in records if record.state(at=now_s) == "active"]
    for record in active:
        revoke_key(objects, record.id, at=now_s)
    if active:
        tell(f"{len(active)} API keys are revoked; waiting {key_s:.0f} s until every API process knows")
        threading.Event().wait(key_s)
    return records


def _end_batches(both: Journal, found: Sequence[BatchKey]) -> None:
    for key in found:
        with suppress(BatchGone, UnknownBatch):
            both.run(batch_journal.cancel(key))


def _end_jobs(both: Journal, tenant: str, done: Erasure, tell: Tell, jobs_s: float) -> None:
    """Cancel the jobs that have not ended, and wait for the running ones, at most `jobs_s`."""
    until, asked = 0.0, set[JobKey]()
    while live := both.store.run(tenant_data.live_jobs(tenant)):
        if new := set(live) - asked:
            asked |= new
            for key in new:
                with suppress(JobGone, UnknownJob):
                    both.run(journal.cancel(key))
            tell(f"{len(new)} jobs are canceled")
            until = time.monotonic() + jobs_s
            continue
        if time.monotonic() > until:
            raise StateConflict(f"{len(live)} jobs of tenant {tenant} still run after {jobs_s:.0f} s: run this again")
        both.run(journal.sweep())  # ends the jobs of dead workers, also without a keeper
        threading.Event().wait(_POLL_S)  # no event reports the end of a job in another process
    done.canceled_jobs = len(asked)


def _purge_jobs(store: Runs, objects: ObjectStore, tenant: str, done: Erasure, tell: Tell) -> None:
    while keys := store.run(tenant_data.oldest_jobs(tenant)):
        left = purge(store, objects, keys)
        done.jobs += len(keys) - len(left)
        tell(f"{done.jobs} jobs are deleted")
        if len(left) == len(keys):
            raise StateConflict(f"{len(left)} jobs of tenant {tenant} cannot be deleted: run the command again")
