"""Usage by tenant, model and day; and the tenants with their limits and keys, for administrators."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from penstock.api.auth import Caller
from penstock.api.errors import problems
from penstock.api.routes.key import LimitsView, limits_view
from penstock.api.schemas.jobs import Outgoing, Time
from penstock.api.services import Api, Services
from penstock.api_keys import KeyRecord
from penstock.config_tables import DEFAULT_TENANT
from penstock.errors import InsufficientScope, InvalidRequest, Issue
from penstock.storage.journal.api_keys import list_keys
from penstock.storage.redis import usage
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


#: All tenants, as a filter.
ALL = "*"
#: Days of a report without `from`.
DEFAULT_DAYS = 31
#: Earliest last day that has the days before it.
EARLIEST = date(1970, 3, 1)
#: Rows of a report, at most.
MAX_ROWS = 10_000
#: Days within which a tenant without keys and limits of its own must have used something to be listed.
SEEN_DAYS = 31

router = APIRouter(prefix="/v1", tags=["usage"], responses=problems(503))


@router.get("/usage", responses=problems(403, 422))
async def read_usage(
    api: Api,
    caller: Caller,
    tenant: Annotated[
        str | None,
        Query(description="Only with the scope `admin`: another tenant, or `*` for all. Default: the key's tenant."),
    ] = None,
    model: Annotated[str | None, Query(description="Only this model.")] = None,
    first: Annotated[
        date | None, Query(alias="from", description="First day (UTC). Default: 30 days before the last one.")
    ] = None,
    last: Annotated[date | None, Query(alias="to", description="Last day (UTC). Default: today.")] = None,
) -> UsageReport:
    """Return the sums of ended jobs by tenant, model and day (UTC): jobs, device seconds, bytes, tokens, pixels.

    Each job counts once, on the day of its end, with all its reported attempts.
    """
    wanted = caller.tenant if tenant is None else tenant
    if wanted != caller.tenant and not caller.is_admin:
        raise InsufficientScope("usage of other tenants needs the scope admin")
    last = last or usage.day_at(time.time())
    first = first or max(last, EARLIEST) - timedelta(days=DEFAULT_DAYS - 1)
    if not 0 <= (last - first).days < api.settings.usage_days:
        detail = f"the days must be in order, and at most {api.settings.usage_days} (usage_days)"
        raise InvalidRequest(detail, errors=[Issue("", detail)])
    return usage_report(await _rows(api, None if wanted == ALL else wanted, model, first, last), first, last)


@router.get("/tenants")
async def list_tenants(api: Api) -> TenantList:
    """List the tenants with their limits, quotas and API keys. The texts of keys are stored nowhere."""
    today = usage.day_at(time.time())
    seen = await api.jobs.run(usage.days_with_usage(None, today - timedelta(days=SEEN_DAYS), today))
    records = [] if api.keys is None else await asyncio.to_thread(lambda: list(list_keys(api.objects)))
    names = {name.rpartition("/")[0] for name in seen} | set(api.settings.tenants)
    names |= {record.tenant for record in records} or {DEFAULT_TENANT}
    keys: dict[str, list[KeyRecord]] = {}
    for record in records:
        keys.setdefault(record.tenant, []).append(record)
    return TenantList(tenants=await asyncio.gather(*(_view(api, name, keys.get(name, [])) for name in sorted(names))))


async def _view(api: Services, tenant: str, keys: Sequence[KeyRecord]) -> TenantView:
    used = await api.jobs.run(usage.quota_state(tenant))
    return TenantView(
        tenant=tenant,
        limits=limits_view(api.settings, tenant),
        device_seconds_today=used.device_s,
        kept_bytes=used.kept_bytes,
        keys=[
            TenantKey(
                id=key.id, name=key.name, scopes=key.scopes, state=key.state(at=time.time()), expires_at=key.expires_s
            )
            for key in keys
        ],
    )


async def _rows(api: Services, tenant: str | None, model: str | None, first: date, last: date) -> list[UsageRow]:
    """Return the sums; raise `InvalidRequest` for more than an answer may have."""
    names = await api.jobs.run(usage.days_with_usage(tenant, first, last))
    found: list[UsageRow] = []
    for some in usage.chunks(names):
        rows = await api.jobs.run(usage.usage_of(some, model))
        found += rows
        if len(found) > MAX_ROWS or len(names) > usage.MAX_DAYS:
            detail = f"the report has more than {MAX_ROWS} rows: name a tenant, a model or fewer days"
            raise InvalidRequest(detail, errors=[Issue("", detail)])
    return found
