"""Schemas of usage and of tenants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any

from pydantic import Field

from penstock.api.schemas.jobs import Outgoing, Time
from penstock.api.schemas.key import LimitsView
from penstock.storage.redis.fields import MICRO
from penstock.storage.redis.usage import UsageRow


class EndedJobs(Outgoing):
    """Numbers of jobs by how they ended."""

    succeeded: int = 0
    failed: int = 0
    canceled: int = 0
    expired: int = 0


class UsageSums(Outgoing):
    """Sums over jobs that ended."""

    jobs: EndedJobs
    #: Seconds of a device, shared out over the jobs of each batch.
    device_seconds: float
    #: Bytes of fetched media, and of the results' artifacts.
    bytes_in: int
    bytes_out: int
    #: Tokens of texts, given and generated.
    tokens_in: int
    tokens_out: int
    #: Pixels of images and scenes given to the model.
    pixels: int


class UsageDay(UsageSums):
    """The sums of one tenant, model and day."""

    tenant: str
    model: str
    #: The day in UTC on which the jobs ended.
    day: date


class UsageReport(Outgoing):
    """Usage by tenant, model and day."""

    #: First and last day.
    first: date = Field(alias="from")
    last: date = Field(alias="to")
    #: One row for each tenant, model and day with ended jobs: by day, tenant and model.
    rows: list[UsageDay]
    #: Sums of all rows.
    total: UsageSums


class TenantKey(Outgoing):
    """An API key of a tenant, without its text."""

    id: str
    name: str
    scopes: list[str]
    #: `active`, `expired` or `revoked`.
    state: str
    expires_at: Time | None


class TenantView(Outgoing):
    """A tenant with its limits, its quotas and its keys."""

    tenant: str
    limits: LimitsView
    #: Device seconds of the jobs that ended today (UTC).
    device_seconds_today: float
    #: Bytes of its objects, as far as the keeper has listed them.
    kept_bytes: int
    keys: list[TenantKey]


class TenantList(Outgoing):
    """The tenants that have a key, limits of their own, or usage."""

    tenants: list[TenantView]


def usage_report(rows: Iterable[UsageRow], first: date, last: date) -> UsageReport:
    """Return the rows as a report."""
    listed = sorted(rows, key=lambda row: (row.day, row.tenant, row.model))
    total = Counter[str]()
    for row in listed:
        total.update(row.sums)
    days = [UsageDay(tenant=r.tenant, model=r.model, day=r.day, **_sums(r.sums)) for r in listed]
    return UsageReport(**{"from": first, "to": last}, rows=days, total=UsageSums(**_sums(total)))


def _sums(sums: Mapping[str, int]) -> dict[str, Any]:
    jobs = EndedJobs(**{name: sums.get(name, 0) for name in EndedJobs.model_fields})
    counts = {n: sums.get(n, 0) for n in ("bytes_in", "bytes_out", "tokens_in", "tokens_out", "pixels")}
    return {"jobs": jobs, "device_seconds": sums.get("device_us", 0) / MICRO, **counts}
