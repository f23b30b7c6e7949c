"""What a person sees while a job runs: bars in a terminal, a line per phase elsewhere. On standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from penstock.answers import Event
from penstock.jobs import Phase

#: What a phase is called.
DOING = {
    Phase.WAITING: "waiting for a worker",
    Phase.LOADING: "loading the model",
    Phase.FETCHING: "fetching the input",
    Phase.PREPROCESSING: "preparing",
    Phase.INFERRING: "inferring",
    Phase.POSTPROCESSING: "writing the result",
    Phase.UPLOADING: "storing the result",
}


@contextmanager
def transfer(console: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """Show how far a file's transfer is; gives what is told of (bytes done, bytes in all)."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with _bars(console, *columns) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


@contextmanager
def following(console: Console) -> Iterator[Callable[[Event], None]]:
    """Show a job's phase, progress and remaining time; gives what is told of its events."""
    columns = (
        SpinnerColumn(), TextColumn("{task.description:<20}"), BarColumn(), TextColumn("{task.fields[count]:>9}"),
        _Times(),
    )  # fmt: skip
    with _bars(console, *columns) as bars:
        view = _JobView(console, bars, bars.add_task(DOING[Phase.WAITING], total=None, count=""))
        yield view.take


def times(elapsed_s: float, left_s: float | None) -> str:
    """Say how long a job runs already, and how long it still will where that is known."""
    left = f", {_minutes(left_s)} left" if left_s else ""
    return f"{_minutes(elapsed_s)} elapsed{left}"


def _minutes(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


class _Times(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Show the times of a task."""
        return Text(times(task.elapsed or 0.0, task.time_remaining))


class _JobView:
    def __init__(self, console: Console, bars: Progress, task: TaskID) -> None:
        self._console = console
        self._bars = bars
        self._task = task
        self._said = ""

    def take(self, event: Event) -> None:
        """Show what an event says. A snapshot would say how it ends before how it began: the events follow."""
        if event.type == "job.created":
            self._show(Phase.WAITING, 0, None)
        elif event.type == "job.progress":
            self._show(event.data.get("phase"), event.data.get("done") or 0, event.data.get("total"))
        elif event.type not in ("snapshot", "job.phase") and not event.type.startswith("delivery."):
            self._say(event.type.removeprefix("job.").replace("_", " "))

    def _show(self, phase: str | None, done: int, total: int | None) -> None:
        what = DOING[Phase(phase)] if phase in set(Phase) else "finishing"
        count = f"{done}/{total}" if total else ""
        self._bars.update(self._task, description=what, completed=done, total=total, count=count)
        if not self._console.is_terminal:
            self._say(what)

    def _say(self, what: str) -> None:
        if what != self._said:
            self._said = what
            self._bars.print(what, highlight=False, markup=False)


def _bars(console: Console, *columns: ProgressColumn) -> Progress:
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
