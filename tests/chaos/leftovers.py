"""The leftovers of a run, read after the service's own collection ran."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from redis import Redis

from penstock.config import Settings
from penstock.jobs import State
from penstock.storage.objects.base import ObjectStore
from penstock.storage.redis import records
from penstock.workers.keeper.retention import GRACE_S, delete_leftovers
from tests.chaos.history import Leftovers

_COUNT = {"zset": "zcard", "set": "scard", "list": "llen", "hash": "hlen", "stream": "xlen"}


def collect(settings: Settings, objects: ObjectStore, redis_url: str) -> Leftovers:
    """Run the keeper's collection as if a day had passed, and return what is still there."""
    store = records.JobStore.open(redis_url)
    try:
        delete_leftovers(store, objects, settings, at=time.time() + GRACE_S + 60)
        found = dict(_records(store.client))
        keys = dict(_keys(store.client))
    finally:
        store.close()
    return Leftovers(
        keys=keys,
        objects=frozenset(info.key for info in objects.list("tenants/default/jobs/")),
        artifacts={job: _artifacts(record) for job, record in found.items()},
        delivery={job: record["delivery"] for job, record in found.items()},
    )


def _records(client: Redis) -> Iterator[tuple[str, dict[str, str]]]:
    for name in client.scan_iter("penstock:tenant:*:job:*", count=1000, _type="hash"):
        record = {str(field): str(value) for field, value in client.hgetall(name).items()}
        yield record["id"], record


def _artifacts(record: dict[str, str]) -> tuple[str, ...]:
    if record["state"] != State.SUCCEEDED:
        return ()
    return tuple(artifact["key"] for artifact in json.loads(record.get("artifacts") or "[]"))


def _keys(client: Redis) -> Iterator[tuple[str, tuple[str, int, int]]]:
    for key in client.scan_iter(count=1000):
        kind = str(client.type(key))
        if kind != "none":  # it ended by itself meanwhile
            members = getattr(client, _COUNT[kind])(key) if kind in _COUNT else 1
            yield str(key), (kind, client.pttl(key), members)
