"""Answered deliveries: marks in the object store, so that a loss of Redis does not send their webhooks again.

    tenants/T/answered/NAME.json    ids of deliveries that a receiver answered with 2xx

A keeper collects the marks of a few seconds and adds them to the tenant's current object, until that object is full.
Deliveries that were not yet marked when Redis was lost are sent again: every delivery is sent at least once.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.formats import WRITES
from penstock.storage.journal.json_objects import put_json, read_json
from penstock.storage.objects.base import ObjectStore
from penstock.storage.redis.deliveries import note_answered
from penstock.storage.redis.scripts import Runs

#: Marks of one object.
MARKS = 2_000
#: Tenants whose current object is kept in memory; beyond that, the oldest one is not filled further.
FILLED = 256
#: Marks that one script writes to Redis.
AT_ONCE = 500

_PLACE = re.compile(r"tenants/(?P<tenant>[^/]+)/answered/[^/]+\.json")


@dataclass(slots=True)
class _Marks:
    """An object that is being filled."""

    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    ids: list[str] = field(default_factory=list)


class Answered:
    """Collects the marks of a keeper. Safe to share between threads."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._new: dict[str, list[str]] = defaultdict(list)
        self._current: dict[str, _Marks] = {}
        self._lock = threading.Lock()
        self._writing = threading.Lock()

    def add(self, tenant: str, delivery_id: str) -> None:
        """Add the mark of a delivery, which the next `write` stores."""
        with self._lock:
            self._new[tenant].append(delivery_id)

    def write(self) -> int:
        """Store the new marks, one object for each tenant; return their number. After an error they stay new."""
        written = 0
        with self._writing:
            with self._lock:
                tenants = list(self._new)
            for tenant in tenants:
                while ids := self._new[tenant][: MARKS - len(self._marks_of(tenant).ids)]:
                    self._write(tenant, ids)
                    written += len(ids)
                with self._lock:
                    if not self._new[tenant]:
                        del self._new[tenant]
        return written

    def _write(self, tenant: str, ids: Sequence[str]) -> None:
        marks = self._marks_of(tenant)
        place = f"tenants/{tenant}/answered/{marks.name}.json"
        put_json(self._objects, place, {"version": WRITES, "ids": [*marks.ids, *ids]})
        marks.ids += ids
        with self._lock:
            del self._new[tenant][: len(ids)]
        if len(marks.ids) >= MARKS:
            del self._current[tenant]

    def _marks_of(self, tenant: str) -> _Marks:
        while tenant not in self._current and len(self._current) >= FILLED:
            del self._current[next(iter(self._current))]
        return self._current.setdefault(tenant, _Marks())


def answered_in(object_key: str) -> str | None:
    """Return the tenant whose marks have this key; None for any other object."""
    found = _PLACE.fullmatch(object_key)
    return found["tenant"] if found else None


def load(store: Runs, objects: ObjectStore, object_key: str) -> None:
    """Write the marks of an object to Redis: restored deliveries with a mark count as delivered."""
    tenant = answered_in(object_key)
    ids: list[str] = (read_json(objects, object_key) or {"ids": []})["ids"]
    for first in range(0, len(ids), AT_ONCE):
        store.run(note_answered(str(tenant), ids[first : first + AT_ONCE]))
