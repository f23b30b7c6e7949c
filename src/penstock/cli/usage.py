"""`penstock usage`: jobs, device seconds, bytes, tokens and pixels by day and model."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from penstock.cli.display import err, fitted, out, print_json
from penstock.cli.options import DEFAULT_URL, AsJson, Url, connect
from penstock.client.answers import UsageReport, UsageSums

_DAY = ["%Y-%m-%d"]
_STEPS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def usage(
    first: Annotated[
        datetime | None,
        typer.Option("--from", formats=_DAY, metavar="DAY", help="First day, UTC [30 days before the last]."),
    ] = None,
    last: Annotated[
        datetime | None, typer.Option("--to", formats=_DAY, metavar="DAY", help="Last day, UTC [today].")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Only this model.")] = None,
    tenant: Annotated[
        str | None, typer.Option(help="Another tenant, or '*' for all; needs a key with the scope admin.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show the usage of ended jobs by day and model: jobs, device seconds, bytes, tokens and pixels."""
    if first is not None and last is not None and first > last:
        raise typer.BadParameter(f"{first.date()} is after --to {last.date()}", param_hint="'--from'")
    with connect(url) as client:
        found = client.usage(
            first=None if first is None else first.date(), last=None if last is None else last.date(), model=model,
            tenant=tenant,
        )  # fmt: skip
    if as_json:
        print_json(dict(found.raw))
    elif not found.rows:
        which = "job" if model is None else f"job of {model}"
        err.print(f"no {which} ended from {found.first} to {found.last}")
    else:
        out.print(usage_table(out, found, with_tenant=tenant == "*"), soft_wrap=False)


def usage_table(console: Console, found: UsageReport, *, with_tenant: bool) -> Table:
    """Return a table of one line per row; in a narrow terminal without the bytes."""
    names = ("day", *(("tenant",) if with_tenant else ()), "model", "jobs", "failed")
    rows: list[tuple[str, ...]] = []
    for row in found.rows:
        tenant = (row.tenant,) if with_tenant else ()
        rows.append((str(row.day), *tenant, row.model, *_figures(row.sums)))
    if len(found.rows) > 1:
        rows.append(("total", *(("",) if with_tenant else ()), "", *_figures(found.total)))
    columns = (*names, "device s", "in", "out", "tokens", "pixels")
    return fitted(console, columns, rows, omit=("in", "out", "failed", "tokens", "pixels"))


def _figures(sums: UsageSums) -> tuple[str, ...]:
    jobs, failed = sum(sums.jobs.values()), sums.jobs.get("failed", 0)
    tokens = sums.tokens_in + sums.tokens_out
    return (
        str(jobs), str(failed or ""), f"{sums.device_s:.1f}" if sums.device_s else "", _bytes(sums.bytes_in),
        _bytes(sums.bytes_out), _short(tokens), _short(sums.pixels),
    )  # fmt: skip


def _bytes(count: int) -> str:
    from rich.filesize import decimal

    return decimal(count) if count else ""


def _short(count: int) -> str:
    """Return a number in at most six characters: `12.3 M`."""
    for size, unit in _STEPS:
        if float(f"{count:.3g}") >= size:  # 999,999 is 1 M
            return f"{float(f'{count:.3g}') / size:g} {unit}"
    return str(count or "")
