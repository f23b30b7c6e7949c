"""The parts of the engine's work: the thread that draws prompts, one step of a batch, and the time of the device."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from traceback import format_exception

import structlog

from penstock.errors import ModelProcessEnded, PenstockError, ProcessorFailed
from penstock.models import Model
from penstock.observation.listening import listening
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Continue, Done, Queues, Step, Stepped
from penstock.workers.engine.residency import Resident
from penstock.workers.engine.runs import Item, Run

#: Longest wait for a feeder to begin, in seconds.
BEGIN_S = 1.0
#: Seconds that a share of the device's time covers at least, once the process has lived so long.
WINDOW_S = 60.0

log = structlog.get_logger(__name__)


def take_step(resident: Resident, items: Sequence[Item]) -> Sequence[Step]:
    """Step a batch and return the runner's answers; raise `ProcessorFailed` for answers that are no steps.

    The runs are charged for the time, also if the step fails.
    """
    begun_s = time.monotonic()
    try:
        return _steps(resident, items)
    finally:
        charge(items, time.monotonic() - begun_s)


def _steps(resident: Resident, items: Sequence[Item]) -> Sequence[Step]:
    run, states = items[0].run, [item.state for item in items]
    # In a batch of several jobs nothing shows to which of them a line belongs: it must reach none of them.
    if run.listener is None or any(item.run is not run for item in items):
        steps = resident.runner.step(states)  # nobody listens in the scheduler's thread
    else:
        with listening(run.listener):
            steps = resident.runner.step(states)
    if len(steps) != len(items) or not all(map(_well_formed, steps)):
        raise ProcessorFailed(f"the runner of model {resident.model.name!r} did not answer every prompt of a batch")
    return steps


def charge(items: Sequence[Item], seconds: float) -> None:
    """Share the time of a step out over the runs of its prompts, by the prompts' costs."""
    costs: defaultdict[Run, int] = defaultdict(int)
    for item in items:
        costs[item.run] += item.cost if item.cost > 1 else 1
    total = sum(costs.values())
    for run, cost in costs.items():
        if run.on_device is not None:
            run.on_device(seconds * cost / total)


def progressed(items: Sequence[Item], steps: Sequence[Step | PenstockError]) -> Mapping[Run, float]:
    """Note in the prompts how much of each is done; return the progress of the runs that report it, in prompts."""
    progress: defaultdict[Run, float] = defaultdict(float)
    for item, step in zip(items, steps, strict=True):
        done = step.done if isinstance(step, Continue) else 1.0
        if item.run.on_batch is not None:
            progress[item.run] += done - item.done
        item.done = done
    return progress


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A batch that a model's process steps."""

    resident: Resident
    items: Sequence[Item]
    answer: Future[Stepped]
    retry: bool

    def steps(self) -> Sequence[Step | PenstockError]:
        """Return the answers, after charging the runs for the time; raise the batch's error."""
        stepped = self.answer.result()
        charge(self.items, stepped.seconds)
        return stepped.steps

    @property
    def seconds(self) -> float:
        """The seconds of the step; 0 if it failed."""
        return 0.0 if self.answer.exception() else self.answer.result().seconds


def send_step(resident: Resident, items: Sequence[Item], *, retry: bool) -> UnderWay:
    """Begin a batch in the model's process, after those that are under way."""
    assert isinstance(resident.runner, Queues)  # noqa: S101  (it has a line)
    answer = resident.runner.begin([item.state for item in items], lambda: is_wanted(items))
    return UnderWay(resident, items, answer, retry)


def deliver(items: Sequence[Item], steps: Sequence[Step | PenstockError]) -> None:
    """Give the runs of a batch their answers. The lock must be held."""
    for run, prompts in progressed(items, steps).items():
        run.report_batch(len(items), prompts)
    for item, step in zip(items, steps, strict=True):
        if isinstance(step, Done):
            item.run.answer(item, step.output)
        elif isinstance(step, Continue):
            item.run.resume(item, step.state, step.partial)
        else:
            item.run.end(step)


def parts_of(items: Sequence[Item], error: BaseException) -> Sequence[Sequence[Item]]:
    """Return the parts in which a failed batch is tried again: halves, or each prompt alone where a process ended.

    A process takes seconds to start again.
    """
    if isinstance(error, ModelProcessEnded):
        return [[item] for item in items]
    half = len(items) // 2
    return items[:half], items[half:]


def is_wanted(items: Sequence[Item]) -> bool:
    """Return True if a job waits for one of the prompts."""
    return any(not item.run.over for item in items)


def _well_formed(step: object) -> bool:
    match step:
        case Done(output):
            return isinstance(output, Output) and not output.partial
        case Continue(_, partial):
            return partial is None or (isinstance(partial, Output) and partial.partial)
        case _:
            return False


def admitted(run: Run, prompts: Iterator[Prompt]) -> Sequence[Item]:
    """Draw and admit ready prompts; raise their error."""
    try:
        return [Item.of(run, prompt) for prompt in prompts]
    except PenstockError:
        raise
    except Exception as error:
        raise translated(error, run.resident.model, "preparation") from error
    finally:
        close_prompts(prompts)


def translated(error: BaseException, model: Model, part: str) -> PenstockError:
    """Return an error of a `part` of a model as Penstock's own."""
    if isinstance(error, PenstockError):
        return error
    failure = ProcessorFailed(f"the model {model.name!r} failed: its {part} raised {type(error).__name__}")
    failure.__cause__ = error
    return failure


def log_cause(model: Model, failure: ProcessorFailed) -> None:
    """Log the cause, which the caller does not see. Runs in the job's thread: the scheduler renders no tracebacks."""
    if failure.__cause__ is not None:
        text = "".join(format_exception(failure.__cause__))
        log.error("engine.foreign_error", model=model.name, detail=failure.detail, traceback=text)


def close_prompts(prompts: Iterator[Prompt]) -> None:
    """Close a generator, so that its files are closed before the job goes on."""
    close: Callable[[], None] | None = getattr(prompts, "close", None)
    try:
        if close is not None:
            close()
    except Exception:
        log.exception("engine.prompts_not_closed")


class Feeder(threading.Thread):
    """A thread for one call; `wait` after an attempt to start it."""

    def __init__(self, feed: Callable[[], object], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._feed = feed
        self._begun = threading.Event()

    def run(self) -> None:
        """Feed."""
        self._begun.set()
        try:
            self._feed()
        finally:
            del self._feed  # it holds the run

    def wait(self) -> None:
        """Wait until the thread has ended and uses the prompts no longer."""
        # Ctrl-C may interrupt `start` although the thread began.
        self._begun.wait(BEGIN_S)
        if self.is_alive():
            self.join()


class DeviceTime:
    """The seconds in which one device computed batches, by the monotonic clock. Safe to use from many threads."""

    def __init__(self, *, at: float) -> None:
        self._lock = threading.Lock()
        self._ended_s = 0.0
        self._began: float | None = None
        #: Earlier readings: their times, and the seconds of work until then.
        self._readings = deque([(at, 0.0)])

    def begin(self, *, at: float) -> None:
        """Note that a batch begins."""
        with self._lock:
            self._began = at

    def end(self, *, at: float) -> None:
        """Note that the batch has ended."""
        with self._lock:
            if self._began is not None:
                self._ended_s += at - self._began
            self._began = None

    def add(self, seconds: float) -> None:
        """Note the seconds of a batch that another process computed."""
        with self._lock:
            self._ended_s += seconds

    def share(self, *, at: float) -> float:
        """Return the share of time, from 0 to 1, in which batches ran since a reading at least `WINDOW_S` old.

        Notes a reading. Without an older one the share begins at the first. A batch that has not ended counts.
        """
        with self._lock:
            worked_s = self._ended_s + (at - self._began if self._began is not None else 0.0)
            while len(self._readings) > 1 and at - self._readings[1][0] >= WINDOW_S:
                self._readings.popleft()
            since, before_s = self._readings[0]
            self._readings.append((at, worked_s))
        return min(1.0, (worked_s - before_s) / (at - since)) if at > since else 0.0
