"""The index of the result cache: the latest job of each result. Commands, as in `records.py`."""

from __future__ import annotations

from penstock.jobs import JobKey
from penstock.storage.redis.fields import us
from penstock.storage.redis.scripts import Command, query


def remember(key: JobKey, digest: str, *, kept_s: float) -> Command[str]:
    """Store that a succeeded job has the result of this digest."""
    return Command(
        "add", {"op": "result", "tenant": key.tenant, "digest": digest, "id": key.id, "kept_us": us(kept_s)}, str
    )


def recall(tenant: str, digest: str) -> Command[JobKey | None]:
    """Return the tenant's latest job with the result of this digest; the job may be purged."""
    return query("result", lambda found: JobKey(tenant, found) if found else None, tenant=tenant, digest=digest)
