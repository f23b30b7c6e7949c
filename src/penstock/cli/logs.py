"""`penstock logs`: the lines that a job's processor and runner logged or printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from penstock.cli.display import clock, err, out, print_json
from penstock.cli.options import DEFAULT_URL, FOLLOWING_S, AsJson, JobId, Url, connect, interruptible

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.client.answers import JobLog, Line

#: Seconds between two reads of a running job's lines; workers store them with their heartbeats.
EVERY_S = 1.0

T = TypeVar("T")


def logs(
    job_id: JobId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print further lines until the job ends; with --json one per line.")
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show what the processor and the runner of a job logged or printed."""
    with connect(url) as client:
        found = client.logs(job_id)
    if follow:
        with connect(url, patience_s=FOLLOWING_S) as client, interruptible("The job continues."):
            _follow(client, job_id, as_json)
    elif as_json:
        print_json(dict(found.raw))
    else:
        _show(found.lines, as_json=False)
        _show_cut(found)


def added(before: Sequence[T], now: Sequence[T]) -> Sequence[T]:
    """Return the items that were appended to a list of which the beginning may be gone."""
    dropped = next(n for n in range(len(before) + 1) if now[: len(before) - n] == before[n:])
    return now[len(before) - dropped :]


def _follow(client: Client, job_id: str, as_json: bool) -> None:
    shown: Sequence[Line] = ()
    over, wait_s = False, 0.0
    while not over:
        over, wait_s = client.job(job_id, wait_s=wait_s).over, EVERY_S
        found = client.logs(job_id)
        _show(added(shown, found.lines), as_json)
        shown = found.lines
        if over:
            _show_cut(found)


def _show(lines: Sequence[Line], as_json: bool) -> None:
    from penstock.observation.log import plain

    for line in lines:
        if as_json:
            print_json(asdict(line), indent=None)
        else:
            parts = f"attempt {line.attempt}  {line.source:<9}  {line.level:<8}  {plain(line.text)}"
            out.print(f"{clock(line.at)}  {parts}")


def _show_cut(found: JobLog) -> None:
    if found.cut:
        err.print(f"{found.cut} lines were left out: a job keeps 1,000 lines and 64 KiB")
