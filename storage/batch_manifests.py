"""A batch's objects, which outlive Redis, all under its prefix.

lines/SHA256.jsonl     the requests, as they came
request.json           makes it accepted; put once
cursor.json            how far its lines have become jobs
invalid/FIRST-LAST     lines of a window that cannot be jobs, and why
cancel.json            its end was asked for
ends/NONCE/*.jsonl     results and errors, as one keeper wrote them
outcome.json           ends it, and names the files that count; put once
deleted.json           it is to be purged
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from penstock.batches import BatchEnd, BatchKey, BatchManifest, Cursor, Invalid
from penstock.errors import ObjectExists, ObjectNotFound
from penstock.storage.base import ObjectStore
from penstock.storage.fields import dump

VERSION = 1
LIMIT_BYTES = 256 << 20

_REQUEST = re.compile(r"tenants/(?P<tenant>[^/]+)/batches/(?P<id>[^/]+)/request\.json")
_PART = re.compile(r"(\d+)-(\d+)")


def request_of(object_key: str) -> BatchKey | None:
    """Return the batch whose request lies under this key, if it is one."""
    found = _REQUEST.fullmatch(object_key)
    return BatchKey(found["tenant"], found["id"]) if found else None


def put_manifest(objects: ObjectStore, manifest: BatchManifest) -> BatchManifest:
    """Store a batch's manifest, and return the one that is stored: the first."""
    name = _name(manifest.key, "request")
    if _put_once(objects, name, {"version": VERSION, "manifest": manifest.to_json()}):
        return manifest
    return BatchManifest.from_json(_get(objects, name)["manifest"])


def read_manifest(objects: ObjectStore, key: BatchKey) -> BatchManifest | None:
    """Return a batch's manifest; None without one."""
    found = _find(objects, _name(key, "request"))
    return None if found is None else BatchManifest.from_json(found["manifest"])


def put_end(objects: ObjectStore, key: BatchKey, ended: BatchEnd) -> BatchEnd:
    """Store how a batch ended unless that is stored already, and return what is stored: from here on it is over."""
    name = _name(key, "outcome")
    if _put_once(objects, name, {"version": VERSION, "end": ended.to_json()}):
        return ended
    return BatchEnd.from_json(_get(objects, name)["end"])


def read_end(objects: ObjectStore, key: BatchKey) -> BatchEnd | None:
    """Return how a batch ended; None if it has not."""
    found = _find(objects, _name(key, "outcome"))
    return None if found is None else BatchEnd.from_json(found["end"])


def put_cursor(objects: ObjectStore, key: BatchKey, cursor: Cursor) -> None:
    """Store how far a batch's lines had their turn."""
    _put(objects, _name(key, "cursor"), asdict(cursor))


def read_cursor(objects: ObjectStore, key: BatchKey) -> Cursor:
    """Return how far a batch's lines had their turn."""
    found = _find(objects, _name(key, "cursor"))
    return Cursor() if found is None else Cursor(**found)


def mark(objects: ObjectStore, key: BatchKey, what: str) -> None:
    """Store that a batch is to be `cancel`ed or `deleted`."""
    _put(objects, _name(key, what), {"version": VERSION})


def marked(objects: ObjectStore, key: BatchKey, what: str) -> bool:
    """Whether `mark` was called."""
    return _find(objects, _name(key, what)) is not None


def put_invalid(objects: ObjectStore, key: BatchKey, first: int, last: int, found: Sequence[Invalid]) -> None:
    """Store why some of the lines from `first` to `last` cannot be jobs."""
    _put(objects, f"{key.prefix}invalid/{first:010d}-{last:010d}", [invalid.to_json() for invalid in found])


def invalid_parts(objects: ObjectStore, key: BatchKey) -> list[tuple[int, int]]:
    """Return the ranges of lines for which there is something in store."""
    names = (info.key.rpartition("/")[2] for info in objects.list(f"{key.prefix}invalid/"))
    return [(int(found[1]), int(found[2])) for name in names if (found := _PART.fullmatch(name))]


def read_invalid(objects: ObjectStore, key: BatchKey, first: int, last: int) -> Iterator[Invalid]:
    """Yield what `put_invalid` stored."""
    rows = _get(objects, f"{key.prefix}invalid/{first:010d}-{last:010d}")
    return (Invalid.from_json(row) for row in rows)


def delete_objects(objects: ObjectStore, key: BatchKey) -> None:
    """Delete everything of a batch, its request first: half deleted, it is not made anew."""
    objects.delete(_name(key, "request"))
    objects.delete_prefix(key.prefix)


def _name(key: BatchKey, what: str) -> str:
    return f"{key.prefix}{what}.json"


def _put(objects: ObjectStore, name: str, value: Any) -> None:
    objects.put_bytes(name, dump(value).encode(), content_type="application/json")


def _put_once(objects: ObjectStore, name: str, value: Any) -> bool:
    try:
        objects.put_bytes(name, dump(value).encode(), content_type="application/json", if_absent=True)
    except ObjectExists:
        return False
    return True


def _get(objects: ObjectStore, name: str) -> Any:
    return json.loads(objects.get_bytes(name, limit_bytes=LIMIT_BYTES))


def _find(objects: ObjectStore, name: str) -> Any:
    try:
        return _get(objects, name)
    except ObjectNotFound:
        return None
