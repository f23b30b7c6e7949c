"""Documents with conditional writes in the object store: each change is an object of its own, put with `if_absent`.

The document at a prefix is its object with the highest number, `<prefix>00000042.json`. Of two writers that have read
the same revision, one puts the next one, and the other learns that it lost. The last `KEPT` revisions stay, so that a
slow writer finds its number taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from penstock.errors import ObjectExists, ObjectNotFound, ObjectStoreUnavailable
from penstock.storage.objects.base import ObjectStore

#: Revisions that are kept, the latest among them.
KEPT = 20
#: Times that a read begins again because the revision was dropped meanwhile.
_TRIES = 5
_NAME = re.compile(r"(?P<prefix>.*/)(?P<number>\d{8})\.json")


@dataclass(frozen=True, slots=True)
class Revision:
    """A stored revision of a document: its number, from 1, and its bytes."""

    number: int
    data: bytes


def revision_in(object_key: str) -> tuple[str, int] | None:
    """Return the prefix and the number of a revision's key; None for any other key."""
    found = _NAME.fullmatch(object_key)
    return None if found is None else (found["prefix"], int(found["number"]))


def read_latest(objects: ObjectStore, prefix: str, *, limit_bytes: int) -> Revision | None:
    """Return the latest revision of a document; None without one."""
    for _ in range(_TRIES):
        numbers = _numbers(prefix, (info.key for info in objects.list(prefix)))
        if not numbers:
            return None
        with suppress(ObjectNotFound):  # newer ones were put meanwhile, and this one was dropped
            return Revision(numbers[-1], objects.get_bytes(_key(prefix, numbers[-1]), limit_bytes=limit_bytes))
    raise ObjectStoreUnavailable("the document changes all the time", retry_after_s=1)


def put_next(objects: ObjectStore, prefix: str, number: int, data: bytes) -> bool:
    """Store a revision; False where another writer has stored this number. Drop the oldest ones."""
    key = _key(prefix, number)
    try:
        objects.put_bytes(key, data, content_type="application/json", if_absent=True)
    except ObjectExists:
        return b"".join(objects.read(key)) == data  # our own put, whose answer was lost
    if number > KEPT:
        with suppress(ObjectStoreUnavailable):  # the next put drops them
            objects.delete(_key(prefix, number - KEPT))
    return True


def _numbers(prefix: str, keys: Iterable[str]) -> list[int]:
    found = (revision_in(key) for key in keys)
    return sorted(each[1] for each in found if each is not None and each[0] == prefix)


def _key(prefix: str, number: int) -> str:
    return f"{prefix}{number:08}.json"
