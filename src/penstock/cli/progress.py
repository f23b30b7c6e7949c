"""Progress on standard error: bars in a terminal; elsewhere only what a user should know, such as a retry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

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

from penstock.client.answers import Event, Job, waits_because
from penstock.jobs import Phase

#: Display names of phases.
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
    """Show the progress of a file transfer; yields a function for (bytes done, total bytes)."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with _bars(console, *columns) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


@contextmanager
def following(console: Console) -> Iterator[Callable[[Event], None]]:
    """Show a job's phase, progress and remaining time; yields a function for the job's events."""
    columns = (
        SpinnerColumn(), TextColumn("{task.description:<20}"), BarColumn(), TextColumn("{task.fields[count]:>9}"),
        _Times(),
    )  # fmt: skip
    with _bars(console, *columns) as bars:
        view = _EventBars(console, bars, bars.add_task(DOING[Phase.WAITING], total=None, count=""))
        yield view.take


@contextmanager
def growing(console: Console, what: str, folder: Path, size_of: Callable[[Path], int]) -> Iterator[None]:
    """Show the growing size of a folder."""
    with _bars(console, SpinnerColumn(), TextColumn("{task.description}"), _Size(folder, size_of)) as bars:
        bars.add_task(what, total=None)
        yield


@contextmanager
def counting(console: Console, total: int) -> Iterator[Callable[[int, str], None]]:
    """Show how many of `total` requests have ended; yields a function for (number, words)."""
    columns = (SpinnerColumn(), BarColumn(), TextColumn("{task.description}"), _Times())
    with _bars(console, *columns) as bars:
        task = bars.add_task("", total=total)
        yield lambda over, words: bars.update(task, completed=over, description=words)


def times(elapsed_s: float, left_s: float | None) -> str:
    """Return a job's elapsed time as text, and its remaining time if known."""
    left = f", {minutes(left_s)} left" if left_s else ""
    return f"{minutes(elapsed_s)} elapsed{left}"


def minutes(seconds: float) -> str:
    """Return a duration as `m:ss` or `h:mm:ss`."""
    hours, rest = divmod(max(0, int(seconds)), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


@contextmanager
def estimating(console: Console) -> Iterator[Callable[[Job], None]]:
    """Show a job's progress and the service's estimate of its remaining time; yields a function for the job."""
    columns = (
        SpinnerColumn(), TextColumn("{task.description:<20}"), BarColumn(), TextColumn("{task.fields[count]}"),
        TextColumn("{task.fields[left]}"),
    )  # fmt: skip
    with _bars(console, *columns) as bars:
        task, said = bars.add_task("", total=None, count="", left=""), ""

        def take(job: Job) -> None:
            nonlocal said
            done, total = job.progress.done, job.progress.total
            what = DOING[Phase(job.phase)] if job.phase in set(Phase) else "finishing"
            place = f"place {job.queue_position}" if job.queue_position else ""
            left = f"about {minutes(job.eta_s)} left" if job.eta_s and job.eta_s >= 1 else ""
            count = f"{done}/{total}" if total else place
            bars.update(task, description=what, completed=done, total=total, count=count, left=left)
            if job.waits_because not in ("", said):
                bars.print(job.waits_because, highlight=False, markup=False)
            said = job.waits_because

        yield take


class _Times(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Show the times of a task."""
        return Text(times(task.elapsed or 0.0, task.time_remaining))


class _Size(ProgressColumn):
    #: Seconds between two updates: walking through a folder is expensive.
    max_refresh = 1.0

    def __init__(self, folder: Path, size_of: Callable[[Path], int]) -> None:
        super().__init__()
        self._folder = folder
        self._size_of = size_of
        self._before = size_of(folder)

    def render(self, _: Task) -> Text:
        """Show the size added so far."""
        return Text(f"{(self._size_of(self._folder) - self._before) / 1e6:,.0f} MB")


#: Events that need no line of their own: in a terminal, and elsewhere besides.
_SHOWN_BY_BARS = frozenset({"snapshot", "job.phase", "job.preview"})
_EXPECTED = frozenset(
    {"job.queued", "job.started", "job.split_decided", "job.succeeded", "job.failed", "job.canceled", "job.expired"}
)


class _EventBars:
    def __init__(self, console: Console, bars: Progress, task: TaskID) -> None:
        self._bars = bars
        self._task = task
        self._said = ""
        self._silent = _SHOWN_BY_BARS if console.is_terminal else _SHOWN_BY_BARS | _EXPECTED

    def take(self, event: Event) -> None:
        """Show an event. A snapshot would show the job's end before its beginning, since the events follow.

        Only the reason why the job waits is read from a snapshot: no event contains it.
        """
        if event.type == "job.created":
            self._show(Phase.WAITING, 0, None)
        elif event.type == "job.progress":
            self._show(event.data.get("phase"), event.data.get("done") or 0, event.data.get("total"))
        elif event.type == "snapshot" and event.data.get("model_problem"):
            self._say(waits_because(event.data["model_problem"]))
        elif event.type not in self._silent and not event.type.startswith("delivery."):
            self._say(event.type.removeprefix("job.").replace("_", " "))

    def _show(self, phase: str | None, done: int, total: int | None) -> None:
        what = DOING[Phase(phase)] if phase in set(Phase) else "finishing"
        count = f"{done}/{total}" if total else ""
        self._bars.update(self._task, description=what, completed=done, total=total, count=count)

    def _say(self, what: str) -> None:
        if what != self._said:
            self._said = what
            self._bars.print(what, highlight=False, markup=False)


def _bars(console: Console, *columns: ProgressColumn) -> Progress:
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
