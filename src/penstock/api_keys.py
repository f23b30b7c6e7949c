"""API keys: their text, what is kept of them, and whether one admits.

    penstock_k3v09x1m2qwe4r_<32 characters of chance><8 of signature><6 of checksum>
             the key's id

The signature shows that the service made the text, so that what anybody made up is refused before a store is asked:
an unknown id and a wrong secret cost the same. The checksum (CRC-32) needs no secret: it is for scanners of leaked
secrets. What is kept is an HMAC-SHA256 over the text and all that the key may do, under the service's secret: neither
who reads the store nor who can write there gets a key from it, or a key more rights.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import string
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

PREFIX = "penstock_"
ID_CHARS = 14
_CHANCE_CHARS, _SIGNATURE_CHARS, _CHECKSUM_CHARS = 32, 8, 6
_ID_ALPHABET = string.ascii_lowercase + string.digits
_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_TEXT = re.compile(
    rf"{PREFIX}([a-z0-9]{{{ID_CHARS}}})_"
    rf"([0-9A-Za-z]{{{_CHANCE_CHARS}}})([0-9A-Za-z]{{{_SIGNATURE_CHARS}}})([0-9A-Za-z]{{{_CHECKSUM_CHARS}}})"
)
_ID = re.compile(rf"[a-z0-9]{{{ID_CHARS}}}")


class Scope(StrEnum):
    """What a key may do. Each allows its own routes and nothing else."""

    #: Look at the tenant's jobs, results and batches, and at the models.
    READ = "read"
    #: Make, cancel, retry and delete the tenant's jobs, and upload files.
    SUBMIT = "submit"
    #: Manage the tenant's webhook endpoints, secrets and deliveries.
    WEBHOOKS = "webhooks"
    #: See the figures of all queues, which are those of all tenants together: for autoscaling.
    MONITOR = "monitor"
    #: Tell of new objects in the buckets of the tenant's drop rules: for object stores.
    EVENTS = "events"
    #: Pause, drain and resume queues, for everybody; purge the tenant's own jobs and requeue its dead letters.
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class KeyText:
    """A well-formed key, taken apart."""

    id: str
    chance: str
    signature: str


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """What is kept of a key. Times are seconds since the epoch."""

    id: str
    tenant: str
    name: str
    scopes: tuple[Scope, ...]
    created_s: float
    expires_s: float | None
    digest: str
    #: Tells under which secret the key was made, and nothing about it.
    secret_mark: str
    revoked_s: float | None = None

    def state(self, *, at: float) -> str:
        """Return `active`, `expired` or `revoked`."""
        if self.revoked_s is not None:
            return "revoked"
        return "expired" if self.expires_s is not None and at >= self.expires_s else "active"

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> KeyRecord:
        """Rebuild a record from `to_json`'s data."""
        return cls(**{**data, "scopes": tuple(map(Scope, data["scopes"]))})


#: Stands for a key that there is none of, so that refusing it takes the same steps.
NOBODY = KeyRecord("", "", "", (), 0.0, 0.0, "", "")


def new_key(
    secret: str, *, tenant: str, name: str, scopes: Iterable[Scope], created_s: float, expires_s: float | None
) -> tuple[KeyRecord, str]:
    """Return a fresh key's record and its text, which is nowhere else."""
    key_id, chance = _draw(_ID_ALPHABET, ID_CHARS), _draw(_ALPHABET, _CHANCE_CHARS)
    unsigned = f"{PREFIX}{key_id}_{chance}{_signature(secret, key_id, chance)}"
    draft = KeyRecord(
        key_id, tenant, name, tuple(sorted(set(scopes))), created_s, expires_s, "", secret_mark(secret)
    )  # fmt: skip
    return replace(draft, digest=_digest(secret, draft, chance)), unsigned + _checksum(unsigned)


def parse(text: str) -> KeyText | None:
    """Return a key's parts; None for what is none, or was mistyped."""
    found = _TEXT.fullmatch(text)
    if found is None or not hmac.compare_digest(_checksum(text[:-_CHECKSUM_CHARS]), found[4]):
        return None
    return KeyText(found[1], found[2], found[3])


def is_signed(secret: str, text: KeyText) -> bool:
    """Whether the service made this text, whatever became of the key since."""
    return hmac.compare_digest(text.signature, _signature(secret, text.id, text.chance))


def admits(secret: str, record: KeyRecord | None, text: KeyText, *, at: float) -> bool:
    """Whether the text is that of the record (None = there is none), and the key neither expired nor revoked."""
    kept = record or NOBODY
    same = hmac.compare_digest(kept.digest, _digest(secret, kept, text.chance))
    return same and kept.id == text.id and kept.state(at=at) == "active"


def secret_mark(secret: str) -> str:
    """Return eight characters by which a secret is told from others."""
    return _mac(secret, "penstock-key-mark").hex()[:8]


def id_in(text: str) -> str | None:
    """Return the id in what a person gives as a key: its id, or its whole text."""
    found = _TEXT.fullmatch(text)
    if found is not None:
        return found[1]
    return text if _ID.fullmatch(text) else None


def _digest(secret: str, record: KeyRecord, chance: str) -> str:
    granted = [record.id, record.tenant, list(record.scopes), record.expires_s]
    return _mac(secret, "penstock-key", *granted, chance).hex()


def _signature(secret: str, key_id: str, chance: str) -> str:
    return _base62(int.from_bytes(_mac(secret, "penstock-key-text", key_id, chance)), _SIGNATURE_CHARS)


def _mac(secret: str, *fields: Any) -> bytes:
    # JSON keeps the fields apart: no two lists have the same text.
    return hmac.digest(secret.encode(), json.dumps(fields).encode(), hashlib.sha256)


def _checksum(text: str) -> str:
    return _base62(zlib.crc32(text.encode()), _CHECKSUM_CHARS)


def _base62(number: int, chars: int) -> str:
    """Return the last digits of a number, so many."""
    digits = ""
    for _ in range(chars):
        number, digit = divmod(number, len(_ALPHABET))
        digits = _ALPHABET[digit] + digits
    return digits


def _draw(alphabet: str, chars: int) -> str:
    return "".join(secrets.choice(alphabet) for _ in range(chars))
