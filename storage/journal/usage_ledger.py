"""Stored sums of usage: the usage of purged jobs, whose outcomes are deleted.

Redis has the sums of all usage. After Redis was emptied, recovery counts each job again from its `outcome.json`. Purged
jobs have no outcome: before a purge deletes it, the purge stores their usage in an object, a *step*:

    tenants/T/usage/steps/NAME.json     the usage of each job of one purge
    tenants/T/usage/sums/NNNNNNNN.json  sums by day of the steps, and of the sum, that it replaces

`fold` adds an object to Redis once: of a step, only the jobs that Redis does not know; a sum only to an emptied Redis,
because a Redis with older data may have counted a part of the sum. So every job counts once, even if a purge is
interrupted, repeated, or runs beside a recovery. `compact` replaces old steps by a sum.

A step is also the tombstone of its jobs: if Redis was restored from a copy that is older than the purge, `fold` removes
the purged jobs from Redis, so that they do not run a second time. So `compact` keeps steps for a time.
"""

from __future__ import annotations

import json
import math
import re
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

from penstock.errors import ObjectExists, ObjectNotFound
from penstock.formats import WRITES
from penstock.jobs import JobKey
from penstock.storage.journal.json_objects import LIMIT_BYTES
from penstock.storage.journal.manifests import delete_objects_of
from penstock.storage.objects.base import ObjectStore
from penstock.storage.redis import upkeep, usage
from penstock.storage.redis.fields import dump
from penstock.storage.redis.record import readable_version
from penstock.storage.redis.scripts import Command, Runs
from penstock.storage.redis.usage import JobUsage

_PLACE = re.compile(r"tenants/(?P<tenant>[^/]+)/usage/(?P<name>(?:steps|sums)/[^/]+)\.json")
_DAY_US = 86_400_000_000


@dataclass(frozen=True, slots=True)
class StoredUsage:
    """One stored object: the usage of purged jobs, or the sums of objects that it replaces."""

    tenant: str
    #: `steps/NAME` or `sums/NUMBER`.
    name: str
    jobs: tuple[JobUsage, ...] = ()
    #: Day (days since the epoch) -> "MODEL MEASURE" -> sum.
    sums: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    replaces: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The object's key."""
        return f"tenants/{self.tenant}/usage/{self.name}.json"

    def to_bytes(self) -> bytes:
        """Return the object's bytes."""
        body = {"jobs": [job.to_json() for job in self.jobs], "sums": self.sums, "replaces": self.replaces}
        return dump({"version": WRITES, **body}).encode()

    @classmethod
    def from_bytes(cls, tenant: str, name: str, data: bytes) -> StoredUsage:
        """Return the stored object; `RecordTooNew` for one that this release cannot read."""
        found: dict[str, Any] = json.loads(data)
        readable_version(f"the usage {name} of tenant {tenant}", found)
        jobs = tuple(JobUsage.from_json(tenant, row) for row in found["jobs"])
        return cls(tenant, name, jobs, found["sums"], tuple(found["replaces"]))


def usage_in(object_key: str) -> tuple[str, str] | None:
    """Return the tenant and the name of a stored sum with this key; None for any other object."""
    found = _PLACE.fullmatch(object_key)
    return (found["tenant"], found["name"]) if found else None


def steps_of(jobs: Sequence[JobUsage]) -> tuple[StoredUsage, ...]:
    """Return a new step for each tenant of the jobs, which are about to be deleted."""
    by_tenant: dict[str, list[JobUsage]] = defaultdict(list)
    for job in jobs:
        by_tenant[job.key.tenant].append(job)
    return tuple(StoredUsage(t, f"steps/{uuid.uuid4().hex}", tuple(rows)) for t, rows in by_tenant.items())


def delete_objects(objects: ObjectStore, keys: Sequence[JobKey], jobs: Sequence[JobUsage]) -> list[StoredUsage]:
    """Delete the objects of jobs, after their usage is stored, and return the steps that were put.

    `jobs` has the usage of the ended jobs. An earlier purge has stored the usage of a durable job without an outcome.
    """
    steps: list[StoredUsage] = []

    def put(with_outcome: frozenset[JobKey]) -> None:
        steps.extend(steps_of([job for job in jobs if not job.durable or job.key in with_outcome]))
        for step in steps:
            objects.put_bytes(step.key, step.to_bytes(), content_type="application/json", if_absent=True)

    delete_objects_of(objects, keys, before=put)
    return steps


def fold(stored: StoredUsage) -> Command[bool]:
    """Add a stored sum to those in Redis, once; False where they include it. Jobs that Redis knows are left out."""
    return usage.fold(stored.tenant, stored.name, replaces=stored.replaces, jobs=stored.jobs, sums=stored.sums)


def read(objects: ObjectStore, tenant: str, name: str) -> StoredUsage | None:
    """Return a stored sum; None where another one has replaced it."""
    place = StoredUsage(tenant, name).key
    try:
        return StoredUsage.from_bytes(tenant, name, objects.get_bytes(place, limit_bytes=LIMIT_BYTES))
    except ObjectNotFound:
        return None


def fold_all(store: Runs, objects: ObjectStore, tenants: Iterable[str]) -> None:
    """Add the stored sums of tenants to those in Redis, without those that another one replaces."""
    for tenant in tenants:
        for stored in _valid(objects, tenant, list(_listed(objects, tenant))):
            store.run(fold(stored))


def compact(
    store: Runs, objects: ObjectStore, tenant: str, *, first_day: date, before_s: float = math.inf
) -> bool:  # fmt: skip
    """Replace a tenant's steps from before `before_s`, and its sum, by one sum without the days before `first_day`.

    Every keeper may do this at any time, but not during a recovery: of several, one puts the next sum. A step with a
    job that still has a record stays, because that job will be in a further step. Return True where a sum was put.
    """
    times = _listed(objects, tenant)
    listed = list(times)
    numbers = [int(name.partition("/")[2]) for name in listed if name.startswith("sums/")]
    stored = _valid(objects, tenant, listed)
    for each in stored:
        store.run(fold(each))
    sums = [each for each in stored if each.name.startswith("sums/")]
    if numbers and not sums:
        return False  # another keeper is compacting
    _delete_replaced(store, objects, tenant, listed, sums)
    old = [each for each in stored if each.jobs and times[each.name] < before_s]
    steps = [step for step in old if not store.run(usage.job_usage([job.key for job in step.jobs]))]
    if not steps or not store.run(upkeep.alive()):
        return False
    later = {job.key for s in stored if s not in steps for job in s.jobs}
    total = _sum_of(tenant, 1 + max(numbers, default=0), steps, sums, counted_later=later)
    total = _trimmed(total, usage.day_number(first_day))
    try:
        objects.put_bytes(total.key, total.to_bytes(), content_type="application/json", if_absent=True)
    except ObjectExists:
        return False  # another keeper's sum
    _delete_replaced(store, objects, tenant, listed, [total])
    return True


def _trimmed(stored: StoredUsage, first_day: int) -> StoredUsage:
    return replace(stored, sums={day: sums for day, sums in stored.sums.items() if int(day) >= first_day})


def _listed(objects: ObjectStore, tenant: str) -> dict[str, float]:
    """Return the names of a tenant's stored sums, each with the time at which it was stored."""
    found = ((usage_in(info.key), info.modified_s) for info in objects.list(f"tenants/{tenant}/usage/"))
    return {place[1]: modified_s for place, modified_s in found if place is not None}


def _valid(objects: ObjectStore, tenant: str, names: Sequence[str]) -> list[StoredUsage]:
    """Return the stored sums that no other one replaces: the latest sum, and the steps that it does not name."""
    sums = sorted(name for name in names if name.startswith("sums/"))
    latest = read(objects, tenant, sums[-1]) if sums else None
    replaced = set(latest.replaces) if latest else set()
    steps = (read(objects, tenant, n) for n in names if n.startswith("steps/") and n not in replaced)
    return [*([latest] if latest else []), *(step for step in steps if step is not None)]


def _sum_of(
    tenant: str, number: int, steps: Sequence[StoredUsage], sums: Sequence[StoredUsage], *,
    counted_later: set[JobKey],
) -> StoredUsage:  # fmt: skip
    """Return one sum of steps and earlier sums. A job in several steps counts once."""
    total: dict[str, Counter[str]] = defaultdict(Counter)
    for each in sums:
        for day, counts in each.sums.items():
            total[day].update(counts)
    jobs = {job.key: job for step in steps for job in step.jobs if job.key not in counted_later}
    for job in jobs.values():
        counts = {job.state: 1, **job.used}
        total[str(job.completed_us // _DAY_US)].update({f"{job.model} {name}": n for name, n in counts.items()})
    replaces = tuple(each.name for each in (*sums, *steps))
    return StoredUsage(tenant, f"sums/{number:08d}", (), {day: dict(c) for day, c in total.items()}, replaces)


def _delete_replaced(
    store: Runs, objects: ObjectStore, tenant: str, listed: Sequence[str], sums: Sequence[StoredUsage]
) -> None:
    """Delete the listed objects that the latest sum replaces."""
    for total in sums:
        gone = sorted(set(total.replaces) & set(listed))
        if gone:
            store.run(fold(total))  # marks the sum as included in Redis before the marks of its parts are removed
            objects.delete_many([StoredUsage(tenant, name).key for name in gone])
            store.run(usage.unfold(tenant, gone))
