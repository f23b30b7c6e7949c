"""Printing: results on standard output, everything else on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console
from rich.table import Table

from penstock.client.answer_text import answer_lines
from penstock.client.answers import Answer, Event, Job, PenstockAPIError, waits_because
from penstock.client.estimates import Estimate
from penstock.errors import with_places
from penstock.views import View

if TYPE_CHECKING:
    from penstock.client import Client

#: Width of tables outside terminals: every row is one line, for `grep` and similar tools.
FILE_COLUMNS = 10_000
#: Spaces between two columns.
_GAP_CHARS = 2
#: Other jobs that a job's lines name, at most.
SHOWN_JOBS = 5
#: Width from which lists show whole dates.
WIDE_COLUMNS = 100

out = Console(
    highlight=False, markup=False, soft_wrap=True, width=None if sys.stdout.isatty() else FILE_COLUMNS
)  # fmt: skip
err = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


AnswerT = TypeVar("AnswerT", bound="Answer")


def show_all(found: Sequence[AnswerT], as_json: bool, print_rows: Callable[[Sequence[AnswerT]], object]) -> None:
    """Print answers of the service: their documents as JSON, or by `print_rows`."""
    if as_json:
        print_json([dict(each.raw) for each in found])
    else:
        print_rows(found)


def show_one(found: AnswerT, as_json: bool, print_rows: Callable[[Sequence[AnswerT]], object]) -> None:
    """Print an answer of the service: its document as JSON, or by `print_rows`."""
    if as_json:
        print_json(dict(found.raw))
    else:
        print_rows([found])


def show_deleted(name: str, as_json: bool) -> None:
    """Print that the service has deleted something."""
    if as_json:
        print_json({"id": name, "deleted": True})
    else:
        out.print(f"{name}  deleted")


def show_result(client: Client, job: Job, as_json: bool) -> None:
    """Print a job with its answer, in the form that its model declares."""
    show_job(job, as_json, () if as_json or not job.data else _views(client, job.model))


def _views(client: Client, model: str) -> Sequence[View]:
    try:
        return client.model(model).views
    except PenstockAPIError:  # no worker serves the model any more
        return ()


def show_job(job: Job, as_json: bool, views: Sequence[View] = ()) -> None:
    """Print a job: its state, its answer, and its artifacts' addresses."""
    if as_json:
        print_json(dict(job.raw))
        return
    out.print("\n".join(packed([job.id, job.model, job.status.value, *_more(job)], out.width)), soft_wrap=True)
    for word, others in (("after", job.after), ("followed by", job.followers or ())):
        if others:
            more = f" and {len(others) - SHOWN_JOBS} more" if len(others) > SHOWN_JOBS else ""
            out.print(f"  {word} {' '.join(others[:SHOWN_JOBS])}{more}", soft_wrap=True)
    show_error(job)
    for line in answer_lines(job.text, job.data, views):
        out.print(line)
    for artifact in job.artifacts:
        out.print(f"  {artifact.name}  {artifact.size_bytes:,} bytes  {artifact.url}")
    show_notes(job.data)


def show_error(job: Job) -> None:
    """Print the error of a job that has one, on standard error."""
    if job.error is not None:
        err.print(f"{job.error.code}: {with_places(job.error.detail, job.error.errors)}")


def show_estimates(found: Sequence[Estimate]) -> None:
    """Print what jobs are expected to take."""
    for each in found:
        out.print(f"{each.model}  would be accepted in queue {each.queue}")
        if each.media_bytes is not None:
            out.print(f"  media           {each.media_bytes:,} bytes")
        device_s, price = each.device_seconds, each.price
        told = "unknown: no job of the model was measured yet" if device_s is None else _interval(device_s, "s")
        out.print(f"  device seconds  {told}")
        out.print(f"  begins in       {'unknown' if each.wait_seconds is None else f'about {each.wait_seconds:.0f} s'}")
        if price is not None:
            out.print(f"  price           {_interval(price, price['currency'])}")
        if each.model_problem is not None:
            out.print(f"  waits: {each.model_problem}")


def _interval(found: Mapping[str, Any], unit: str) -> str:
    return f"{found['low']:.3g} to {found['high']:.3g} {unit}"


def show_notes(data: Mapping[str, Any] | None) -> None:
    """Print the notes in a result's data on standard error: warnings such as suspected undeclared nodata."""
    notes = (data or {}).get("notes")
    for note in notes if isinstance(notes, list) else ():
        err.print(f"note: {note}")


def packed(parts: Sequence[str], width: int) -> list[str]:
    """Return lines of the parts that fit into `width` columns; a part is never cut, and further lines are indented."""
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + 2 + len(part) <= width:
            lines[-1] += f"  {part}"
        else:
            lines.append(f"  {part}")
    return lines


def _more(job: Job) -> list[str]:
    if job.over:
        return [f"{name}={value}" for name, value in job.metadata.items()]
    parts = [job.phase or "", count(job)]
    parts.append(f"place {job.queue_position}" if job.queue_position else "")
    parts.append(f"about {job.eta_s:.0f} s left" if job.eta_s else "")
    parts.append(job.waits_because or (job.progress.message or "" if job.after and not job.attempt else ""))
    return [part for part in parts if part]


def show_event(event: Event, as_json: bool) -> None:
    """Print an event as a line."""
    if as_json:
        print_json({"id": event.id, "type": event.type, "at": event.at, "data": event.data}, indent=None)
    elif event.type == "snapshot":
        why = waits_because(event.data.get("model_problem"))
        out.print(f"{'now':<12}{event.data.get('status')}  {why}".rstrip())
    else:
        out.print(f"{clock(event.at):<12}{event.type:<22}{words(event.data)}")


def count(job: Job) -> str:
    """Return a job's progress as text, if it is known."""
    return f"{job.progress.done}/{job.progress.total} {job.progress.unit}" if job.progress.total else ""


def words(data: Mapping[str, Any]) -> str:
    """Return an event's data as text."""
    return "  ".join(_word(name, value) for name, value in data.items() if value not in (None, "", {}, []))


def _word(name: str, value: Any) -> str:
    if name == "error" and isinstance(value, Mapping):
        return f"{value.get('code')}: {value.get('detail')}"
    return f"at {clock(value)}" if name == "at_s" else f"{name} {value}"


def clock(at: Any) -> str:
    """Return a time (a datetime, its ISO text, or seconds since the epoch) as local time of day."""
    if at is None:
        return ""
    if isinstance(at, int | float):
        at = datetime.fromtimestamp(at, UTC)
    moment = datetime.fromisoformat(at) if isinstance(at, str) else at
    return moment.astimezone().strftime("%H:%M:%S.%f")[:-4]


def moment(at: datetime, *, wide: bool = True) -> str:
    """Return a time as local date and time; without `wide`, to the minute and without the year."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S" if wide else "%m-%d %H:%M")


def is_wide(console: Console) -> bool:
    """Return True for a console that has room for all columns of a list."""
    return console.width >= WIDE_COLUMNS


def fitted(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]], *, omit: Sequence[str]) -> Table:
    """Return a table of one line per row that fits the console: without columns of `omit`, in this order, if need be.

    A column of `omit` that is empty in all rows is left out anyway in a terminal.
    """
    widths = [max(map(len, (name, *(row[n] for row in rows)))) for n, name in enumerate(columns)]
    gone = {name for n, name in enumerate(columns) if name in omit and not any(row[n] for row in rows)}
    gone = gone if console.is_terminal else set()
    for name in ("", *omit):
        gone |= {name}
        kept = [n for n, column in enumerate(columns) if column not in gone]
        spare = console.width - sum(widths[n] + _GAP_CHARS for n in kept) + _GAP_CHARS
        if spare >= 0:
            break
    made = Table(box=None, pad_edge=False, header_style="bold")
    for n in kept:
        # The names of models are cut, before ids, states and times are.
        width = widths[n] + min(0, spare) if columns[n] == "model" else widths[n]
        made.add_column(columns[n], overflow="ellipsis", no_wrap=True, width=max(1, width))
    for row in rows:
        made.add_row(*(row[n] for n in kept))
    return made


def show_rows(
    console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]], *, omit: Sequence[str], below: str
) -> None:
    """Print a table of one line per row, as `fitted` makes it.

    In a terminal, the long texts of the column `below` follow the table, each after the first cell of its row.
    """
    at = columns.index(below)
    if not console.is_terminal:
        console.print(fitted(console, columns, rows, omit=omit), soft_wrap=False)
        return
    short = [[cell for n, cell in enumerate(row) if n != at] for row in (columns, *rows)]
    console.print(fitted(console, short[0], short[1:], omit=omit), soft_wrap=False)
    for row in rows:
        if row[at]:
            console.print(f"{row[0]}: {row[at]}", soft_wrap=False)


def table(*columns: str) -> Table:
    """Return a table without lines; its first column is never wrapped."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        made.add_column(column, overflow="fold", no_wrap=number == 0, min_width=len(column))
    return made


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Print a document as JSON. Lone surrogates, which UTF-8 cannot have, are written as JSON escapes."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=_plain)
    sys.stdout.write(text.encode("utf-8", "backslashreplace").decode() + "\n")
    sys.stdout.flush()


def _plain(value: object) -> str:
    """Return a time in the API's format, and anything else as `str`."""
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else str(value)
