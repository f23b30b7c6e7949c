"""JSON documents in the object store."""

from __future__ import annotations

import json
from typing import Any

from penstock.errors import ObjectNotFound
from penstock.storage.objects.base import ObjectStore
from penstock.storage.redis.fields import dump

#: Largest object that is read: more than any body or text output that the service accepts.
LIMIT_BYTES = 256 << 20


def put_json(objects: ObjectStore, key: str, value: Any, *, if_absent: bool = False) -> None:
    """Store a JSON document. With `if_absent`, raise `ObjectExists` if the key is taken."""
    objects.put_bytes(key, dump(value).encode(), content_type="application/json", if_absent=if_absent)


def get_json(objects: ObjectStore, key: str, *, limit_bytes: int = LIMIT_BYTES) -> Any:
    """Return a JSON document; `ObjectNotFound` without one. Raise `ValueError` for an object that is no JSON."""
    return json.loads(objects.get_bytes(key, limit_bytes=limit_bytes))


def read_json(objects: ObjectStore, key: str, *, limit_bytes: int = LIMIT_BYTES) -> Any:
    """Return a JSON document as `get_json`; None without one."""
    try:
        return get_json(objects, key, limit_bytes=limit_bytes)
    except ObjectNotFound:
        return None
