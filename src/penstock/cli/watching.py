"""The display of `penstock watch`: the state of a service, fitted to the screen."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.cli.progress import DOING, minutes
from penstock.client.answers import ClientError, Job, PenstockAPIError, Queue, Worker
from penstock.jobs import Phase

if TYPE_CHECKING:
    from penstock.client import Client

T = TypeVar("T")
Row: TypeAlias = list[RenderableType]
#: Running jobs that are requested: more than a screen has lines.
MAX_JOBS = 100
#: Screen width in characters below which columns are omitted.
WIDE_COLUMNS = 100
#: A width greater than any table's.
_ENDLESS = 10_000
_BAR_CHARS = 16
_ID_CHARS = 8


@dataclass(frozen=True)
class ServiceState:
    """The state of a service at a time. Parts that the key may not read are None, with a reason in `hidden`."""

    queues: Sequence[Queue] | None
    workers: Sequence[Worker] | None
    jobs: Sequence[Job] | None
    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    hidden: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the state as JSON-ready data."""
        parts = {"queues": self.queues, "workers": self.workers, "jobs": self.jobs}
        lists = {name: None if found is None else [dict(one.raw) for one in found] for name, found in parts.items()}
        return {"at": self.at, **lists}


def read_state(client: Client) -> ServiceState:
    """Request the state of a service; raise `ClientError` if it does not respond."""
    hidden: list[str] = []

    def seen(what: str, ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except PenstockAPIError as error:
            if error.code != "insufficient_scope":
                raise
            hidden.append(f"{what}: {error.detail}")
            return None

    queues, workers = seen("queues", client.queues), seen("workers", client.workers)
    page = seen("jobs", lambda: client.jobs(status="running", limit=MAX_JOBS))
    return ServiceState(queues, workers, None if page is None else page.jobs, hidden=tuple(hidden))


@dataclass
class Screen:
    """The latest state of a service, laid out for each drawing: ages advance, and the screen may change its size."""

    url: str
    #: Time of each drawing, in seconds since the epoch.
    clock: Callable[[], float] = time.time
    look: ServiceState | None = None
    trouble: str | None = None

    def update(self, found: ServiceState | ClientError) -> None:
        """Show a new state; after an error, the previous state stays."""
        if isinstance(found, ServiceState):
            self.look, self.trouble = found, None
        else:
            self.trouble = str(found)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw as much as fits."""
        room = options.size.height if console.is_terminal else _ENDLESS
        moment = datetime.fromtimestamp(self.clock(), UTC).astimezone()
        head = Text(
            f"penstock  {self.url}  {moment:%Y-%m-%d %H:%M:%S}", style="bold", no_wrap=True, overflow="ellipsis"
        )
        yield head
        if self.trouble is not None:
            yield Text(self.trouble, style="red", no_wrap=True, overflow="ellipsis")
        if self.look is None:
            return
        left = room - 1 - (self.trouble is not None)
        for columns, rows in self._parts(self.look, console.is_terminal):
            left -= 1
            if left < 2:
                return
            yield Text("")
            part = _fitted(columns, rows, left, console, options)
            yield part
            left -= len(part.rows) + 1
        for sentence in self.look.hidden[: max(0, left)]:
            yield Text(sentence, style="dim", no_wrap=True, overflow="ellipsis")

    def _parts(self, look: ServiceState, bars: bool) -> list[tuple[Sequence[str], list[Row]]]:
        at = self.clock()
        parts: list[tuple[Sequence[str], list[Row]]] = []
        if look.queues is not None:
            parts.append((_QUEUE, [_queue(queue) for queue in look.queues]))
        if look.workers is not None:
            parts.append((_WORKER, [_worker(worker, at) for worker in look.workers]))
        if look.jobs is not None:
            parts.append((_JOB, [_job(job, at, bars) for job in look.jobs]))
        return parts


_QUEUE = ("queue", "mode", "waiting", "running", "oldest", "per minute", "empty in", "workers", "slots", "dead")
_WORKER = ("worker", "host", "state", "jobs", "device", "queues", "models (latest batch)", "up")
_JOB = ("running job", "model", "phase", "bar", "progress", "left", "for", "attempt")


#: Columns omitted on narrow screens.
_LESS = frozenset({"mode", "slots", "per minute", "host", "queues", "up", "attempt", "bar"})


#: Columns omitted, in this order, before anything else is cut.
_FIRST_TO_GO = ("bar", "attempt", "for")


def _fitted(
    columns: Sequence[str], rows: Sequence[Row], lines: int, console: Console, options: ConsoleOptions
) -> Table:
    """Return a table with at most `lines` lines, and with the columns that fit."""
    gone = _LESS if options.max_width < WIDE_COLUMNS else frozenset[str]()
    made = _cut(columns, rows, lines, gone)
    for name in _FIRST_TO_GO:
        if Measurement.get(console, options.update_width(_ENDLESS), made).maximum <= options.max_width:
            break
        gone |= {name}
        made = _cut(columns, rows, lines, gone)
    return made


def _cut(columns: Sequence[str], rows: Sequence[Row], lines: int, gone: Set[str]) -> Table:
    """Return a table with at most `lines` lines, including its head and a note on omitted rows."""
    kept = [number for number, name in enumerate(columns) if name not in gone]
    made = Table(box=None, pad_edge=False, header_style="bold cyan")
    for number in kept:
        head = "" if columns[number] == "bar" else columns[number]
        made.add_column(head, overflow="ellipsis", no_wrap=True, min_width=None if number else _ID_CHARS)
    fitting = rows if len(rows) < lines else rows[: max(0, lines - 2)]
    for row in fitting:
        made.add_row(*(row[number] for number in kept))
    if len(fitting) < len(rows):
        made.add_row(f"and {len(rows) - len(fitting)} more")
    if not rows:
        made.add_row("none")
    return made


def _queue(queue: Queue) -> Row:
    mode = Text(queue.mode, style="" if queue.mode == "open" else "yellow")
    oldest = minutes(queue.oldest_age_s) if queue.queued else ""
    # For an empty queue the service reports 0, which could be misread as the end of a running job.
    empty_in = _left(queue.eta_s) if queue.queued else ""
    figures = (str(queue.queued), str(queue.running), oldest, f"{queue.throughput_per_s * 60:.1f}", empty_in)
    dead = Text(str(queue.dead_letters), style="red" if queue.dead_letters else "")
    return [queue.name, mode, *figures, str(queue.workers), str(queue.slots), dead]


def _worker(worker: Worker, at: float) -> Row:
    state = Text(worker.state, style="" if worker.state == "serving" else "yellow")
    models = ", ".join(name if batch is None else f"{name} ({batch})" for name, batch in worker.models.items())
    up = minutes(at - worker.started_at.timestamp())
    jobs = f"{worker.running}/{worker.slots}"
    return [worker.id[:_ID_CHARS], worker.host, state, jobs, worker.device, " ".join(worker.queues), models, up]


def _job(job: Job, at: float, bars: bool) -> Row:
    done, total = job.progress.done, job.progress.total
    phase = DOING[Phase(job.phase)] if job.phase in set(Phase) else job.phase or ""
    bar: RenderableType = ProgressBar(total or 1, min(done, total or 1), _BAR_CHARS) if bars and total else ""
    count = f"{done}/{total} {job.progress.unit}" if total else ""
    age = "" if job.started_at is None else minutes(at - job.started_at.timestamp())
    return [job.id, job.model, phase, bar, count, _left(job.eta_s), age, str(job.attempt)]


def _left(seconds: float | None) -> str:
    return "" if seconds is None else minutes(seconds)
