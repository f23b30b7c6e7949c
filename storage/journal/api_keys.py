"""API keys in the object store, where they outlive Redis: one object for each, under `keys/`.

Keys lie outside a tenant's prefix, because a key determines the tenant. So does the catalogue (`stored_models.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from penstock.api_keys import KeyRecord
from penstock.errors import ObjectStoreUnavailable
from penstock.storage.journal.json_objects import put_json, read_json
from penstock.storage.objects.base import ObjectStore

_LIMIT_BYTES = 10_000
_PREFIX = "keys/"


def put_key(store: ObjectStore, record: KeyRecord) -> None:
    """Store a new key; `ObjectExists` if its id is taken."""
    put_json(store, _place(record.id), record.to_json(), if_absent=True)


def read_key(store: ObjectStore, key_id: str) -> KeyRecord | None:
    """Return the record of a key; None for an unknown key."""
    return _read(store, _place(key_id))


def list_keys(store: ObjectStore) -> Iterator[KeyRecord]:
    """Yield all keys, in the order of their ids."""
    for info in list(store.list(_PREFIX)):
        if (record := _read(store, info.key)) is not None:
            yield record


def revoke_key(store: ObjectStore, key_id: str, *, at: float) -> KeyRecord | None:
    """Revoke a key for ever and return its record; None for an unknown key. Safe to repeat."""
    record = read_key(store, key_id)
    if record is None or record.revoked_s is not None:
        return record
    ended = replace(record, revoked_s=at)
    put_json(store, _place(key_id), ended.to_json())
    return ended


def delete_key(store: ObjectStore, key_id: str) -> None:
    """Delete a key that was revoked before; a missing one is no error."""
    store.delete(_place(key_id))


def _read(store: ObjectStore, place: str) -> KeyRecord | None:
    try:
        found = read_json(store, place, limit_bytes=_LIMIT_BYTES)
        return None if found is None else KeyRecord.from_json(found)
    except (ValueError, KeyError, TypeError) as error:
        raise ObjectStoreUnavailable(f"the API key in {place} of the object store is damaged") from error


def _place(key_id: str) -> str:
    return f"{_PREFIX}{key_id}.json"
