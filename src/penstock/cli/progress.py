"""Progress on standard error: bars in a terminal; elsewhere only what a user should know, such as a retry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Bars
from rich.text import Text

from penstock.client.answers import Job
from penstock.jobs import Phase, Progress

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


#: Outcomes of attempts after which the job goes on.
_GOES_ON = ("retrying", "released", "lost")


@contextmanager
def transfer(console: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of a file transfer; yields a function for (bytes done, total bytes)."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with _bars(console, *columns) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


@contextmanager
def phases(console: Console) -> Iterator[Callable[..., None]]:
    """Show the progress of a run; yields a function for its phase and progress, its place in line and seconds left."""
    columns = (
        SpinnerColumn(), TextColumn("{task.description:<20}"), BarColumn(), TextColumn("{task.fields[count]:>9}"),
        _Times(),
    )  # fmt: skip
    with _bars(console, *columns) as bars:
        task = bars.add_task(DOING[Phase.WAITING], total=None, count="")

        def take(
            phase: str | None, progress: Progress, *, place: int | None = None, left_s: float | None = None
        ) -> None:
            what = DOING[Phase(phase)] if phase in set(Phase) else "finishing"
            waits = f"place {place}" if place else ""
            count = f"{progress.done}/{progress.total}" if progress.total else waits
            bars.update(
                task, description=what, completed=progress.done, total=progress.total, count=count, left_s=left_s
            )

        yield take


@contextmanager
def following(console: Console) -> Iterator[Callable[[Job], None]]:
    """Show a job's progress and the service's estimate of its remaining time; yields a function for the job.

    Prints why the job waits for its model, and the attempts that did not end it: `attempt 1 released`.
    """
    with phases(console) as show:
        said = set[str]()

        def take(job: Job) -> None:
            show(job.phase, job.progress, place=job.queue_position, left_s=job.eta_s)
            attempts = (f"attempt {each.number} {each.outcome}" for each in job.attempts if each.outcome in _GOES_ON)
            for sentence in filter(None, (job.waits_because, *attempts)):
                if sentence not in said:
                    said.add(sentence)
                    console.print(sentence, highlight=False, markup=False)

        yield take


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


class _Times(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Show the times of a task."""
        return Text(times(task.elapsed or 0.0, task.fields.get("left_s") or task.time_remaining))


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


def _bars(console: Console, *columns: ProgressColumn) -> Bars:
    return Bars(*columns, console=console, transient=True, disable=not console.is_terminal)
