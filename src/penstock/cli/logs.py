"""`penstock logs`: the lines that a job's processor and runner logged or printed, and the log of a worker."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from penstock.cli.display import clock, err, out, print_json, show_error
from penstock.cli.options import DEFAULT_URL, FOLLOWING_S, AsJson, Url, connect, interruptible
from penstock.client.answers import Job, JobLog, Line, WorkerLine
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.client import Client

#: Seconds between two reads of a running job's lines; workers store them with their heartbeats.
EVERY_S = 1.0

T = TypeVar("T")


def logs(
    job_id: Annotated[str | None, typer.Argument(metavar="[JOB]", help="Id of the job.", show_default=False)] = None,
    worker: Annotated[
        str | None,
        typer.Option(
            "--worker", metavar="NAME", help="Show the log of a worker: its id, the start of its id, or its host."
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print further lines until the job ends; with --json one per line.")
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show what the processor and the runner of a job logged or printed; with --worker, the log of a worker."""
    if (job_id is None) == (worker is None):
        raise ConfigError("name a job, or a worker with --worker NAME")
    if job_id is None:
        _show_worker(url, str(worker), follow, as_json)
        return
    with connect(url) as client:
        found = client.logs(job_id)
        if as_json and not follow:
            print_json(dict(found.raw))
        elif not follow:
            _show(found.lines, as_json=False)
            _show_end(found, client.job(job_id))
    if follow:
        with connect(url, patience_s=FOLLOWING_S) as client, interruptible("The job continues."):
            _follow(client, job_id, as_json)


def _show_worker(url: str, name: str, follow: bool, as_json: bool) -> None:
    """Print the latest log lines of a worker, and with `follow` further ones until Ctrl-C."""
    with connect(url) as client:
        found = _worker(client, name)
        lines = client.worker_lines(found)
        if as_json and not follow:
            print_json([asdict(line) for line in lines])
            return
        _show_worker_lines(lines, as_json)
    if follow:
        with connect(url, patience_s=FOLLOWING_S) as client, interruptible("The worker continues."):
            while True:
                time.sleep(EVERY_S)
                latest = client.worker_lines(found)
                _show_worker_lines(added(lines, latest), as_json)
                lines = latest


def _worker(client: Client, name: str) -> str:
    """Return the id of the one live worker that a name means; the name itself where no live worker fits."""
    live = client.workers()
    found = [each.id for each in live if each.host == name or each.id.startswith(name)]
    if len(found) > 1:
        raise ConfigError(f"{name!r} means {len(found)} workers: choose one of {', '.join(found)}")
    return found[0] if found else name


def _show_worker_lines(lines: Sequence[WorkerLine], as_json: bool) -> None:
    for line in lines:
        if as_json:
            print_json(asdict(line), indent=None)
        else:
            _print(f"{clock(line.at)}  {line.level:<8}", line.text)


def added(before: Sequence[T], now: Sequence[T]) -> Sequence[T]:
    """Return the items that were appended to a list of which the beginning may be gone."""
    dropped = next(n for n in range(len(before) + 1) if now[: len(before) - n] == before[n:])
    return now[len(before) - dropped :]


def _follow(client: Client, job_id: str, as_json: bool) -> None:
    shown: Sequence[Line] = ()
    over, wait_s = False, 0.0
    while not over:
        job, wait_s = client.job(job_id, wait_s=wait_s), EVERY_S
        over = job.over
        found = client.logs(job_id)
        _show(added(shown, found.lines), as_json)
        shown = found.lines
        if over:
            _show_end(found, job)


def _show(lines: Sequence[Line], as_json: bool) -> None:
    for line in lines:
        if as_json:
            print_json(asdict(line), indent=None)
        else:
            _print(f"{clock(line.at)}  attempt {line.attempt}  {line.source:<9}  {line.level:<8}", line.text)


def _print(head: str, text: str) -> None:
    """Print a line of a log. What follows a line end in it, such as a traceback, is indented."""
    from penstock.observation.log import plain

    first, *others = plain(text, lines=True).rstrip("\n").split("\n")
    out.print(f"{head}  {first}")
    for other in others:
        out.print(f"    {other}")


def _show_end(found: JobLog, job: Job) -> None:
    """Print what the lines do not say: that there are none, that some were left out, and the job's error."""
    if not found.lines:
        err.print(f"the job is {job.status.value}, and its code has logged nothing")
    show_error(job)
    if found.cut:
        err.print(f"{found.cut} lines were left out: a job keeps 1,000 lines and 64 KiB")
