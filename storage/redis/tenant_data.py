"""All that Redis keeps of a tenant: listed, dumped and deleted, in steps that hold up nobody."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.batches import BatchKey
from penstock.jobs import JobKey
from penstock.storage.redis.scripts import Arg, Command, Runs

#: Jobs of one step.
STEP_JOBS = 200


@dataclass(frozen=True, slots=True)
class Index:
    """An index of all tenants: its key, and `zset` or `set`."""

    key: str
    kind: str


@dataclass(frozen=True, slots=True)
class Traces:
    """The keys and entries in Redis that name a tenant."""

    keys: tuple[str, ...]
    #: (index, member) of indexes of all tenants.
    members: tuple[tuple[Index, str], ...]

    @property
    def words(self) -> tuple[str, ...]:
        """One line for each."""
        return (*self.keys, *(f"{index.key}: {member}" for index, member in self.members))


def traces(store: Runs, tenant: str) -> Traces:
    """Look through all keys and indexes for the tenant."""
    keys = tuple(sorted(set(_pages(store, tenant, "keys"))))
    found = store.run(_command(tenant, "indexes", lambda rows: [Index(*row) for row in rows]))
    members = tuple((each, m) for each in found for m in _pages(store, tenant, "members", key=each.key, kind=each.kind))
    return Traces(keys, members)


def own_keys(store: Runs, tenant: str) -> tuple[str, ...]:
    """Return the keys that hold data of this tenant alone. A reply of a claim may hold jobs of other tenants too."""
    prefix = f"penstock:tenant:{tenant}:"
    return tuple(sorted({key for key in _pages(store, tenant, "keys") if key.startswith(prefix)}))


def delete(store: Runs, tenant: str, found: Traces) -> None:
    """Delete what was found."""
    for first in range(0, len(found.keys), STEP_JOBS):
        store.run(_command(tenant, "delete", int, keys=list(found.keys[first : first + STEP_JOBS])))
    for index, member in found.members:
        store.run(_command(tenant, "remove", int, key=index.key, kind=index.kind, members=[member]))


def dump(tenant: str, key: str) -> Command[tuple[str, Any]]:
    """Return a key's type and value as Redis replies them."""
    return _command(tenant, "dump", lambda row: (str(row[0]), row[1]), key=key)


def live_jobs(tenant: str) -> Command[tuple[JobKey, ...]]:
    """Return jobs that have not ended, at most `STEP_JOBS`."""
    return _command(tenant, "live", lambda ids: _jobs(tenant, ids), limit=STEP_JOBS)


def oldest_jobs(tenant: str) -> Command[tuple[JobKey, ...]]:
    """Return the oldest jobs, at most `STEP_JOBS`."""
    return _command(tenant, "jobs", lambda ids: _jobs(tenant, ids), limit=STEP_JOBS)


def batches_of(tenant: str) -> Command[tuple[BatchKey, ...]]:
    """Return all batches."""
    return _command(tenant, "batches", lambda ids: tuple(BatchKey(tenant, each) for each in ids))


def _jobs(tenant: str, ids: Sequence[str]) -> tuple[JobKey, ...]:
    return tuple(JobKey(tenant, each) for each in ids)


def _pages(store: Runs, tenant: str, op: str, **args: Arg) -> Iterator[str]:
    cursor = "0"
    while True:
        cursor, found = store.run(_command(tenant, op, tuple, cursor=cursor, **args))
        yield from found
        if cursor == "0":
            return


def _command(tenant: str, op: str, parse: Any, **args: Arg) -> Command[Any]:
    return Command("tenant", {"op": op, "tenant": tenant, **args}, parse)
