"""One step of a batch: the runner's answers, their check, and the share of the device's time of each run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from traceback import format_exception

import structlog

from penstock.errors import PenstockError, ProcessorFailed
from penstock.listening import listening
from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Continue, Done, Step
from penstock.workers.engine.residency import Resident
from penstock.workers.engine.runs import Item, Run

log = structlog.get_logger(__name__)


def take_step(resident: Resident, items: Sequence[Item]) -> Sequence[Step]:
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


def _well_formed(step: object) -> bool:
    if type(step) is Done and type(step.output) is Output:  # as most are: the patterns cost three calls
        return not step.output.partial
    match step:
        case Done(output):
            return isinstance(output, Output) and not output.partial
        case Continue(_, partial):
            return partial is None or (isinstance(partial, Output) and partial.partial)
        case _:
            return False


def translated(error: BaseException, model: Model, part: str) -> PenstockError:
    if isinstance(error, PenstockError):
        return error
    failure = ProcessorFailed(f"the {part} of model {model.name!r} failed on this input ({type(error).__name__})")
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
