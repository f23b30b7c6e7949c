"""A batch's objects, which outlive Redis, all under its prefix.

lines/SHA256.jsonl     the requests, byte for byte
request.json           the manifest: the batch is accepted; put once
cursor.json            the progress of the expansion into jobs
invalid/FIRST-LAST     lines of a window that cannot be jobs, with the reason
cancel.json            a flag: the end was requested
ends/NONCE/*.jsonl     results and errors, as one keeper wrote them
outcome.json           the end, with the names of the valid files; put once
deleted.json           a flag: the batch is to be purged
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from penstock.batches import BatchEnd, BatchKey, BatchManifest, Cursor, Invalid
from penstock.errors import ObjectExists
from penstock.formats import WRITES, known, version_of
from penstock.storage.journal.json_objects import get_json, put_json, read_json
from penstock.storage.objects.base import ObjectStore
from penstock.storage.redis.record import readable_version

_REQUEST = re.compile(r"tenants/(?P<tenant>[^/]+)/batches/(?P<id>[^/]+)/request\.json")
_PART = re.compile(r"(\d+)-(\d+)")


def request_of(object_key: str) -> BatchKey | None:
    """Return the batch whose request has this key; None for any other object."""
    found = _REQUEST.fullmatch(object_key)
    return BatchKey(found["tenant"], found["id"]) if found else None


def put_manifest(objects: ObjectStore, manifest: BatchManifest) -> BatchManifest:
    """Store a batch's manifest unless one is stored, and return the stored one."""
    name = _name(manifest.key, "request")
    more = {"more": manifest.more} if manifest.more else {}
    if _put_once(objects, name, {"version": manifest.version, "manifest": manifest.to_json(), **more}):
        return manifest
    return _manifest(_get(objects, name))


def read_manifest(objects: ObjectStore, key: BatchKey) -> BatchManifest | None:
    """Return a batch's manifest; None without one."""
    found = _find(objects, _name(key, "request"))
    return None if found is None else _manifest(found)


def put_end(objects: ObjectStore, key: BatchKey, ended: BatchEnd) -> BatchEnd:
    """Store a batch's end unless one is stored, and return the stored end: from here on the batch is over."""
    name = _name(key, "outcome")
    if _put_once(objects, name, {"version": WRITES, "end": ended.to_json()}):
        return ended
    return BatchEnd.from_json(_get(objects, name)["end"])


def read_end(objects: ObjectStore, key: BatchKey) -> BatchEnd | None:
    """Return a batch's end; None before."""
    found = _find(objects, _name(key, "outcome"))
    return None if found is None else BatchEnd.from_json(found["end"])


def put_cursor(objects: ObjectStore, key: BatchKey, cursor: Cursor) -> None:
    """Store the progress of a batch's expansion; fields of newer formats stay as they are."""
    name = _name(key, "cursor")
    put_json(objects, name, {**(_find(objects, name) or {}), **asdict(cursor)})


def read_cursor(objects: ObjectStore, key: BatchKey) -> Cursor:
    """Return the progress of a batch's expansion."""
    found = _find(objects, _name(key, "cursor"))
    return Cursor() if found is None else Cursor(**known(Cursor, found))


def set_flag(objects: ObjectStore, key: BatchKey, flag: str) -> None:
    """Set the flag `cancel` or `deleted` of a batch."""
    put_json(objects, _name(key, flag), {"version": WRITES})


def has_flag(objects: ObjectStore, key: BatchKey, flag: str) -> bool:
    """Return True where a flag is set."""
    return _find(objects, _name(key, flag)) is not None


def put_invalid(objects: ObjectStore, key: BatchKey, first: int, last: int, found: Sequence[Invalid]) -> None:
    """Store the lines from `first` to `last` that cannot be jobs, with their reasons."""
    put_json(objects, f"{key.prefix}invalid/{first:010d}-{last:010d}", [invalid.to_json() for invalid in found])


def invalid_parts(objects: ObjectStore, key: BatchKey) -> list[tuple[int, int]]:
    """Return the ranges of lines that `put_invalid` stored."""
    names = (info.key.rpartition("/")[2] for info in objects.list(f"{key.prefix}invalid/"))
    return [(int(found[1]), int(found[2])) for name in names if (found := _PART.fullmatch(name))]


def read_invalid(objects: ObjectStore, key: BatchKey, first: int, last: int) -> Iterator[Invalid]:
    """Yield the invalid lines of a range that `put_invalid` stored."""
    rows = _get(objects, f"{key.prefix}invalid/{first:010d}-{last:010d}")
    return (Invalid.from_json(row) for row in rows)


def delete_objects(objects: ObjectStore, key: BatchKey) -> None:
    """Delete all objects of a batch, its request first, so that a half deleted batch is not created again."""
    objects.delete(_name(key, "request"))
    objects.delete_prefix(key.prefix)


def _manifest(found: Mapping[str, Any]) -> BatchManifest:
    return BatchManifest.from_json(found["manifest"], found.get("more", {}), version=version_of(found))


def _name(key: BatchKey, document: str) -> str:
    return f"{key.prefix}{document}.json"


def _put_once(objects: ObjectStore, name: str, value: Any) -> bool:
    try:
        put_json(objects, name, value, if_absent=True)
    except ObjectExists:
        return False
    return True


def _get(objects: ObjectStore, name: str) -> Any:
    return _readable(name, get_json(objects, name))


def _find(objects: ObjectStore, name: str) -> Any:
    return _readable(name, read_json(objects, name))


def _readable(name: str, found: Any) -> Any:
    """Return a document; raise `RecordTooNew` for one that this release cannot read."""
    if isinstance(found, dict):
        readable_version(name, found)
    return found
