"""The leftovers of a run, read after the service's own collection ran."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator

from redis import Redis

from penstock.config import Settings
from penstock.errors import ObjectNotFound
from penstock.jobs import State
from penstock.storage.objects.base import ObjectStore
from penstock.storage.redis import records
from penstock.workers.keeper.retention import GRACE_S, delete_leftovers
from tests.chaos.history import TERMINAL, Leftovers

#: Measures of a job's usage, as the record names them.
MEASURES = ("device_us", "bytes_in", "bytes_out", "tokens_in", "tokens_out", "pixels")
_COUNT = {"zset": "zcard", "set": "scard", "list": "llen", "hash": "hlen", "stream": "xlen"}


def collect(settings: Settings, objects: ObjectStore, redis_url: str) -> Leftovers:
    """Run the keeper's collection as if a day had passed, and return what is still there."""
    store = records.JobStore.open(redis_url)
    try:
        delete_leftovers(store, objects, settings, at=time.time() + GRACE_S + 60)
        found = dict(_records(store.client))
        keys = dict(_keys(store.client))
        usage = dict(_usage(store.client))
    finally:
        store.close()
    return Leftovers(
        keys=keys,
        objects=frozenset(info.key for info in objects.list("tenants/") if info.key.split("/")[2] == "jobs"),
        artifacts={job: _artifacts(record) for job, record in found.items()},
        delivery={job: record["delivery"] for job, record in found.items()},
        usage=usage,
        committed=_committed(objects, found.values()),
    )


def _records(client: Redis) -> Iterator[tuple[str, dict[str, str]]]:
    for name in client.scan_iter("penstock:tenant:*:job:*", count=1000, _type="hash"):
        record = {str(field): str(value) for field, value in client.hgetall(name).items()}
        yield record["id"], record


def _usage(client: Redis) -> Iterator[tuple[tuple[str, str], int]]:
    for key in client.scan_iter("penstock:tenant:*:usage:[0-9]*", count=1000):
        _, _, tenant, _, day = str(key).split(":")
        for name, text in client.hgetall(key).items():
            yield (f"{tenant}/{day}", str(name)), int(text)


def _committed(objects: ObjectStore, found: Iterable[dict[str, str]]) -> Counter[tuple[str, str]]:
    """Return the sums of the outcomes: of the objects that decide them, or of the records where there are none."""
    sums: Counter[tuple[str, str]] = Counter()
    for record in found:
        try:
            place = f"tenants/{record['tenant']}/jobs/{record['id']}/outcome.json"
            outcome = json.loads(objects.get_bytes(place, limit_bytes=2**26))["record"]
        except ObjectNotFound:
            outcome = record
        if outcome["state"] not in TERMINAL:
            continue
        place = f"{record['tenant']}/{int(outcome['completed_us']) // 86_400_000_000}"
        sums[place, f"{outcome['model']} {outcome['state']}"] += 1
        for measure in MEASURES:
            if n := int(outcome.get(measure) or 0):
                sums[place, f"{outcome['model']} {measure}"] += n
    return sums


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
