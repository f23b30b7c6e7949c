"""Environments of results: the model, software and machine that computed a result, stored once under their digest.

Thousands of results have the same environment. So a job's record has only its digest, in 16 characters, and the object

    tenants/T/environments/DIGEST.json

describes the environment. A worker stores this object before the outcome that names the digest. The object stays until
the tenant is erased.
"""

from __future__ import annotations

import time
from base64 import b32encode
from collections import OrderedDict
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

from penstock.storage.canonical_hash import digest
from penstock.storage.journal.json_objects import put_json, read_json
from penstock.storage.objects.base import ObjectStore

#: Seconds after which a process stores a description again: the tenant may have been erased meanwhile.
STORED_AGAIN_S = 3600.0
#: Descriptions in the cache of a process, about 1 kB each.
_MAX_KNOWN = 1000
_LIMIT_BYTES = 64 << 10
#: Bytes of a digest: short, because each job has one; a tenant has few environments.
_BYTES = 10


class Environments:
    """Stores and reads environments, with a cache. Safe to use from many threads."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        #: By the object's key: the description, and when it was stored or read.
        self._known: OrderedDict[str, tuple[Mapping[str, Any], float]] = OrderedDict()

    def keep(self, objects: ObjectStore, tenant: str, described: Mapping[str, Any]) -> str:
        """Store an environment unless the cache has it; return its digest, 16 letters and digits."""
        name = b32encode(digest("environment", described)[:_BYTES]).decode().lower()
        key = _key(tenant, name)
        with self._lock:
            known = self._known.get(key)
        if known is None or self._clock() - known[1] > STORED_AGAIN_S:
            put_json(objects, key, described)
            self._remember(key, described)
        return name

    def known(self, tenant: str, name: str) -> Mapping[str, Any] | None:
        """Return an environment from the cache; None for others."""
        with self._lock:
            found = self._known.get(_key(tenant, name))
        return None if found is None else found[0]

    def read(self, objects: ObjectStore, tenant: str, name: str) -> Mapping[str, Any] | None:
        """Return an environment; None if the tenant has no such object. Raises `ObjectStoreUnavailable`."""
        if (known := self.known(tenant, name)) is not None:
            return known
        key = _key(tenant, name)
        described: Mapping[str, Any] | None = read_json(objects, key, limit_bytes=_LIMIT_BYTES)
        if described is not None:
            self._remember(key, described)
        return described

    def _remember(self, key: str, described: Mapping[str, Any]) -> None:
        with self._lock:
            self._known[key] = described, self._clock()
            self._known.move_to_end(key)
            while len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)


def _key(tenant: str, name: str) -> str:
    return f"tenants/{tenant}/environments/{name}.json"
