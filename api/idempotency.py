"""Ids derived from an `Idempotency-Key`: the same for each repetition, different for each tenant."""

from __future__ import annotations

import uuid

from penstock.errors import InvalidRequest

MAX_CHARS = 255


def id_from(namespace: uuid.UUID, tenant: str, key: str, *more: str) -> str:
    """Return the UUIDv5 of a tenant's key and of the further texts in `more`.

    Raises `InvalidRequest` for a key that is empty or too long.
    """
    if not 0 < len(key) <= MAX_CHARS:
        raise InvalidRequest(f"the Idempotency-Key is empty or too long; it may have 1 to {MAX_CHARS} characters")
    found = uuid.uuid5(uuid.uuid5(namespace, tenant), key)
    for text in more:
        found = uuid.uuid5(found, text)
    return str(found)
