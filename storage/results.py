"""Which job had a result before: what a model's result cache remembers. Commands, as in `records.py`."""

from __future__ import annotations

from penstock.jobs import JobKey
from penstock.storage.fields import us
from penstock.storage.scripts import Command


def remember(key: JobKey, digest: str, *, kept_s: float) -> Command[str]:
    """Note that a job, which succeeded, has the result of this digest."""
    return Command("remember", (key.tenant, digest, key.id, us(kept_s)), str)


def recall(tenant: str, digest: str) -> Command[JobKey | None]:
    """Return the tenant's latest job that had the result of this digest; it may be gone."""
    return Command("recall", (tenant, digest), lambda found: JobKey(tenant, found) if found else None)
