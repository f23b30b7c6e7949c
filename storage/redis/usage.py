"""Usage in Redis: sums per tenant, model and UTC day, which `terminate` in `common.lua` adds to as a job ends.

A job counts on the day of its end, once, with what its committed attempts used. `journal/usage_ledger.py` has the part
of these sums that outlives Redis.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

from penstock.jobs import TERMINAL, JobKey
from penstock.storage.redis.fields import MICRO, fields
from penstock.storage.redis.records import GONE_S
from penstock.storage.redis.scripts import Arg, Command, Runs, query

#: Measures of a job's usage: fields of its record.
MEASURES = ("device_us", "bytes_in", "bytes_out", "tokens_in", "tokens_out", "pixels")
#: The terminal states, which are measures too: their sums are numbers of jobs.
ENDS = tuple(sorted(state.value for state in TERMINAL))
#: Days whose sums one script returns.
DAYS_AT_ONCE = 200
#: Tenants and days in one answer, at most.
MAX_DAYS = 20_000

_EPOCH = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class UsageRow:
    """The sums of one tenant, model and day."""

    tenant: str
    day: date
    model: str
    #: Terminal state or measure -> sum; a sum of 0 is missing.
    sums: Mapping[str, int]

    @property
    def jobs(self) -> dict[str, int]:
        """The number of jobs by how they ended."""
        return {state: self.sums.get(state, 0) for state in ENDS}


@dataclass(frozen=True, slots=True)
class JobUsage:
    """The usage of one ended job."""

    key: JobKey
    model: str
    state: str
    completed_us: int
    used: Mapping[str, int] = field(default_factory=dict)
    #: The job's end was decided by an outcome in the object store.
    durable: bool = field(default=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return the row of a stored sum."""
        named = {"id": self.key.id, "model": self.model, "state": self.state, "completed_us": self.completed_us}
        return {**named, **self.used}

    @classmethod
    def from_json(cls, tenant: str, row: Mapping[str, Any]) -> JobUsage:
        """Return the usage of a row of a stored sum."""
        used = {name: int(row[name]) for name in MEASURES if name in row}
        return cls(JobKey(tenant, row["id"]), row["model"], row["state"], int(row["completed_us"]), used)


@dataclass(frozen=True, slots=True)
class QuotaState:
    """The part of its quotas that a tenant has used."""

    #: Seconds of devices, of the jobs that ended today (UTC).
    device_s: float
    #: Seconds until the day's end.
    left_s: float
    kept_bytes: int


def day_number(day: date) -> int:
    """Return the days from 1970-01-01 to a day."""
    return (day - _EPOCH).days


def day_of(number: int) -> date:
    """Return the day of a number of days since 1970-01-01."""
    return _EPOCH + timedelta(days=number)


def day_at(seconds: float) -> date:
    """Return the UTC day of a time in seconds since the epoch."""
    return datetime.fromtimestamp(seconds, UTC).date()


def days_with_usage(tenant: str | None, first: date, last: date) -> Command[tuple[str, ...]]:
    """Return `TENANT/DAY` of the days that have sums, of one tenant or of all, at most `MAX_DAYS` + 1."""
    return query(
        "usage_days", tuple, tenant=tenant, **{"from": day_number(first)}, to=day_number(last), limit=MAX_DAYS + 1
    )


def usage_of(names: Sequence[str], model: str | None = None) -> Command[tuple[UsageRow, ...]]:
    """Return the sums of some `TENANT/DAY`, at most `DAYS_AT_ONCE`, of one model or of all."""

    def parse(reply: Sequence[Sequence[str]]) -> tuple[UsageRow, ...]:
        found = zip(names, reply, strict=True)
        return tuple(row for name, flat in found for row in _rows(name, flat) if model in (None, row.model))

    return query("usage", parse, days=list(names))


def chunks(names: Sequence[str]) -> Iterable[Sequence[str]]:
    """Yield the names in parts for `usage_of`."""
    return (names[first : first + DAYS_AT_ONCE] for first in range(0, len(names), DAYS_AT_ONCE))


def job_usage(keys: Sequence[JobKey]) -> Command[tuple[JobUsage, ...]]:
    """Return the usage of those of the jobs that have a record and have ended."""

    def parse(reply: Sequence[Sequence[str] | None]) -> tuple[JobUsage, ...]:
        return tuple(_job_usage(key, row) for key, row in zip(keys, reply, strict=True) if row)

    return query("job_usage", parse, jobs=[str(key) for key in keys])


def quota_state(tenant: str) -> Command[QuotaState]:
    """Return what a tenant has used of its quotas."""
    return query("quotas", lambda row: QuotaState(int(row[0]) / MICRO, int(row[1]) / MICRO, int(row[2])), tenant=tenant)


def fold(
    tenant: str, name: str, *, replaces: Sequence[str] = (), jobs: Sequence[JobUsage] = (),
    sums: Mapping[str, Mapping[str, int]],
) -> Command[bool]:  # fmt: skip
    """Add a stored sum of purged jobs, once; False where the sums in Redis include it already."""
    args: dict[str, Arg] = {
        "op": "fold_usage", "tenant": tenant, "name": name, "replaces": list(replaces),
        "jobs": [job.to_json() for job in jobs], "sums": sums, "gone_s": GONE_S,
    }  # fmt: skip
    return Command("note", args, bool)


def unfold(tenant: str, names: Sequence[str]) -> Command[bool]:
    """Forget that stored sums were added, because they are deleted."""
    return Command("note", {"op": "unfold_usage", "tenant": tenant, "names": list(names)}, bool)


def trim(before: date, *, limit: int = 500) -> Command[int]:
    """Delete the sums of the days before a day, at most `limit`; return their number."""
    return Command("note", {"op": "trim_usage", "before": day_number(before), "limit": limit}, int)


def note_kept(tenant: str, size_bytes: int) -> Command[bool]:
    """Note the bytes of a tenant's objects, as just listed."""
    return Command("note", {"op": "kept", "tenant": tenant, "bytes": size_bytes}, bool)


def tenants_that_keep(store: Runs) -> set[str]:
    """Return the tenants of which Redis knows the bytes that they keep."""
    found, cursor = set[str](), "0"
    while True:
        cursor, tenants = store.run(query("tenants_that_keep", tuple, cursor=cursor))
        found.update(tenants)
        if cursor == "0":
            return found


def keep_upload(tenant: str, upload_id: str, size_bytes: int, max_bytes: int) -> Command[int | None]:
    """Count an upload among the bytes that a tenant keeps, once; where there is no room return the bytes kept."""
    args: dict[str, Arg] = {"tenant": tenant, "upload": upload_id, "bytes": size_bytes, "max_bytes": max_bytes}
    return Command("note", {"op": "keep_upload", **args}, lambda reply: None if reply[0] == 1 else int(reply[1]))


def _rows(name: str, flat: Sequence[str]) -> Iterable[UsageRow]:
    tenant, _, number = name.rpartition("/")
    models: dict[str, dict[str, int]] = {}
    for field_name, text in fields(flat).items():
        model, _, measure = field_name.rpartition(" ")
        models.setdefault(model, {})[measure] = int(text)
    return (UsageRow(tenant, day_of(int(number)), model, sums) for model, sums in sorted(models.items()))


def _job_usage(key: JobKey, row: Sequence[str]) -> JobUsage:
    model, state, completed_us, durable, *used = row
    counts = {name: int(text) for name, text in zip(MEASURES, used, strict=True) if text}
    used_up = {name: n for name, n in counts.items() if n}
    return JobUsage(key, model, state, int(completed_us), used_up, durable == "1")
