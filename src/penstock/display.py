"""What the command line prints: results on standard output, everything else on standard error."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from penstock.answers import Event, Job

#: Of a table that no terminal bounds.
FILE_COLUMNS = 200

out = Console(
    highlight=False, markup=False, soft_wrap=True, width=None if sys.stdout.isatty() else FILE_COLUMNS
)  # fmt: skip
err = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


def show_job(job: Job, as_json: bool) -> None:
    """Print a job: one line, what it answered, and where its artifacts are."""
    if as_json:
        print_json(dict(job.raw))
        return
    out.print(f"{job.id}  {job.model}  {job.status.value}{_more(job)}")
    if job.error is not None:
        places = "".join(f"\n  {issue.pointer}: {issue.detail}" for issue in job.error.errors)
        err.print(f"{job.error.code}: {job.error.detail}{places}")
    if job.text:
        out.print(job.text)
    for artifact in job.artifacts:
        out.print(f"  {artifact.name}  {artifact.size_bytes:,} bytes  {artifact.url}")


def _more(job: Job) -> str:
    if job.over:
        return f"  {job.metadata}" if job.metadata else ""
    parts = [job.phase or "", count(job)]
    parts.append(f"place {job.queue_position}" if job.queue_position else "")
    parts.append(f"about {job.eta_s:.0f} s left" if job.eta_s else "")
    return "".join(f"  {part}" for part in parts if part)


def show_event(event: Event, as_json: bool) -> None:
    """Print an event as a line."""
    if as_json:
        print_json({"id": event.id, "type": event.type, "at": event.at, "data": event.data}, indent=None)
    elif event.type == "snapshot":
        out.print(f"{'now':<12}{event.data.get('status')}")
    else:
        out.print(f"{clock(event.at):<12}{event.type:<22}{words(event.data)}")


def count(job: Job) -> str:
    """Say how far a job is, where that is known."""
    return f"{job.progress.done}/{job.progress.total} {job.progress.unit}" if job.progress.total else ""


def words(data: Any) -> str:
    """Say what an event holds."""
    return "  ".join(f"{name} {value}" for name, value in data.items() if value not in (None, "", {}, []))


def clock(at: Any) -> str:
    """Say a time (a datetime or its ISO text) by the clock on the wall."""
    moment = datetime.fromisoformat(at) if isinstance(at, str) else at
    return "" if moment is None else moment.astimezone().strftime("%H:%M:%S.%f")[:-4]


def table(*columns: str) -> Table:
    """Return a table without lines; its first column is never broken."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        made.add_column(column, overflow="fold", no_wrap=number == 0, min_width=len(column))
    return made


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Print a document for programs."""
    sys.stdout.write(json.dumps(value, indent=indent, ensure_ascii=False, default=str) + "\n")
    sys.stdout.flush()
