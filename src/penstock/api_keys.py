"""API keys: their text, their stored record, and the check of a key.

    penstock_k3v09x1m2qwe4r_<32 random characters><8 of signature><6 of checksum>
             the key's id

The signature shows that the service made the text, so that made-up keys are rejected without reading a store: an
unknown id and a wrong secret take the same time. The checksum (CRC-32) needs no secret: it helps scanners for leaked
secrets. The record holds an HMAC-SHA256, under the service's secret, of the text and all permissions of the key: with
access to the store nobody can obtain a key, or give a key more permissions.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import string
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from penstock.formats import OWN, carrying, known, unknown

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
    """A permission of a key. Each allows its own routes and nothing else."""

    #: Read the tenant's jobs, results and batches, and the models.
    READ = "read"
    #: Submit, cancel, retry and delete the tenant's jobs, and upload files.
    SUBMIT = "submit"
    #: Manage the tenant's webhook endpoints, secrets and deliveries.
    WEBHOOKS = "webhooks"
    #: Read the figures of all queues, summed over all tenants: for autoscaling.
    MONITOR = "monitor"
    #: Send events about new objects in the buckets of the tenant's drop rules: for object stores.
    EVENTS = "events"
    #: Pause, drain and resume queues, for all tenants; purge the tenant's own jobs and requeue its dead letters.
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class KeyText:
    """The parts of a well-formed key."""

    id: str
    chance: str
    signature: str


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """The stored record of a key. Times are seconds since the epoch."""

    id: str
    tenant: str
    name: str
    #: `Scope`s, and names that only newer releases know: these allow nothing here.
    scopes: tuple[str, ...]
    created_s: float
    expires_s: float | None
    digest: str
    #: Fingerprint of the secret under which the key was made (stored under this name); it does not reveal the secret.
    secret_mark: str
    revoked_s: float | None = None
    #: Fields of newer formats, which are carried unchanged.
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def state(self, *, at: float) -> str:
        """Return `active`, `expired` or `revoked`."""
        if self.revoked_s is not None:
            return "revoked"
        return "expired" if self.expires_s is not None and at >= self.expires_s else "active"

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON-ready data."""
        return carrying(self.extra, self._own())

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> KeyRecord:
        """Rebuild a record from `to_json`'s data."""
        found = cls(**{**known(cls, data), "scopes": tuple(map(str, data["scopes"]))})
        return replace(found, extra=unknown(data, found._own()))

    def _own(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name not in OWN}


#: Placeholder for an unknown key, so that rejecting it takes the same steps.
NOBODY = KeyRecord("", "", "", (), 0.0, 0.0, "", "")


def new_key(
    secret: str, *, tenant: str, name: str, scopes: Iterable[Scope], created_s: float, expires_s: float | None
) -> tuple[KeyRecord, str]:
    """Return a new key's record, and its text, which is stored nowhere."""
    key_id, chance = _draw(_ID_ALPHABET, ID_CHARS), _draw(_ALPHABET, _CHANCE_CHARS)
    unsigned = f"{PREFIX}{key_id}_{chance}{_signature(secret, key_id, chance)}"
    draft = KeyRecord(
        key_id, tenant, name, tuple(sorted(set(scopes))), created_s, expires_s, "", secret_fingerprint(secret)
    )  # fmt: skip
    return replace(draft, digest=_digest(secret, draft, chance)), unsigned + _checksum(unsigned)


def parse(text: str) -> KeyText | None:
    """Return a key's parts; None for a malformed or mistyped key."""
    found = _TEXT.fullmatch(text)
    if found is None or not hmac.compare_digest(_checksum(text[:-_CHECKSUM_CHARS]), found[4]):
        return None
    return KeyText(found[1], found[2], found[3])


def is_signed(secret: str, text: KeyText) -> bool:
    """Return True if the service made this text, even if the key no longer exists."""
    return hmac.compare_digest(text.signature, _signature(secret, text.id, text.chance))


def admits(secret: str, record: KeyRecord | None, text: KeyText, *, at: float) -> bool:
    """Return True if the text belongs to the record (None = unknown key) and the key is neither expired nor revoked."""
    kept = record or NOBODY
    same = hmac.compare_digest(kept.digest, _digest(secret, kept, text.chance))
    return same and kept.id == text.id and kept.state(at=at) == "active"


def secret_fingerprint(secret: str) -> str:
    """Return eight characters that identify a secret."""
    return _mac(secret, "penstock-key-mark").hex()[:8]


def id_in(text: str) -> str | None:
    """Return the id in a person's input, which is a key's id or whole text."""
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
    # JSON separates the fields: different lists have different texts.
    return hmac.digest(secret.encode(), json.dumps(fields).encode(), hashlib.sha256)


def _checksum(text: str) -> str:
    return _base62(zlib.crc32(text.encode()), _CHECKSUM_CHARS)


def _base62(number: int, chars: int) -> str:
    """Return the last `chars` base-62 digits of a number."""
    digits = ""
    for _ in range(chars):
        number, digit = divmod(number, len(_ALPHABET))
        digits = _ALPHABET[digit] + digits
    return digits


def _draw(alphabet: str, chars: int) -> str:
    return "".join(secrets.choice(alphabet) for _ in range(chars))
