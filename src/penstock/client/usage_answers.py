"""Usage as the client reads it: sums of ended jobs by tenant, model and day."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any
from urllib.parse import urlencode

from penstock.client.operations import Operations
from penstock.client.protocol import Flow


@dataclass(frozen=True, slots=True)
class UsageSums:
    """Sums over jobs that ended."""

    #: `succeeded`, `failed`, `canceled`, `expired` -> number of jobs.
    jobs: Mapping[str, int]
    device_s: float
    bytes_in: int
    bytes_out: int
    tokens_in: int
    tokens_out: int
    pixels: int


@dataclass(frozen=True, slots=True)
class UsageDay:
    """The sums of one tenant, model and day (UTC)."""

    tenant: str
    model: str
    day: date
    sums: UsageSums


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Usage from the day `first` to the day `last`."""

    first: date
    last: date
    rows: tuple[UsageDay, ...]
    total: UsageSums
    raw: Mapping[str, Any] = field(repr=False, compare=False)


def read(
    do: Operations, first: date | str | None, last: date | str | None, model: str | None, tenant: str | None
) -> Flow[UsageReport]:
    """Fetch a report; None is left out of the request."""
    asked = {"from": first, "to": last, "model": model, "tenant": tenant}
    query = urlencode({name: str(value) for name, value in asked.items() if value is not None})
    return read_report((yield from do.fetch("GET", f"/v1/usage?{query}" if query else "/v1/usage")))


def read_report(data: Mapping[str, Any]) -> UsageReport:
    """Read a report."""
    return UsageReport(
        first=date.fromisoformat(data["from"]),
        last=date.fromisoformat(data["to"]),
        rows=tuple(
            UsageDay(row["tenant"], row["model"], date.fromisoformat(row["day"]), _sums(row)) for row in data["rows"]
        ),
        total=_sums(data["total"]),
        raw=data,
    )


def _sums(data: Mapping[str, Any]) -> UsageSums:
    counts = (int(data.get(name) or 0) for name in ("bytes_in", "bytes_out", "tokens_in", "tokens_out", "pixels"))
    return UsageSums(dict(data["jobs"]), float(data["device_seconds"]), *counts)
