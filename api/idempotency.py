"""Ids made from an `Idempotency-Key`: the same for each repetition, and another for every tenant."""

from __future__ import annotations

import uuid

from penstock.errors import InvalidRequest

MAX_CHARS = 255


def id_from(namespace: uuid.UUID, tenant: str, key: str, *more: str) -> str:
    """Return the id that a tenant's key stands for, a UUIDv5; with `more`, other texts give another.

    Raises `InvalidRequest` for a key that is empty or too long.
    """
    if not 0 < len(key) <= MAX_CHARS:
        raise InvalidRequest(f"an Idempotency-Key has 1 to {MAX_CHARS} characters")
    found = uuid.uuid5(uuid.uuid5(namespace, tenant), key)
    for text in more:
        found = uuid.uuid5(found, text)
    return str(found)
