"""What the engine asks of a runner, and what job threads ask of the engine."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.models import Model
from penstock.processors.base import Output, Prompt


@dataclass(frozen=True, slots=True)
class Done:
    """This state is finished."""

    output: Output


@dataclass(frozen=True, slots=True)
class Continue:
    """This state needs another step (diffusion, generation)."""

    state: Any
    #: Everything so far, for followers: an `Output` that is `partial`.
    partial: Output | None = None
    #: How much of the prompt's work is done, from 0 to 1: what progress shows of a prompt of many steps.
    done: float = 0.0


Step = Done | Continue


def shapes_of(prompt: Prompt) -> Hashable:
    """Return every name in the prompt with its shape and dtype, or the type of plain data: a runner's usual bucket."""
    named = sorted(prompt.data.items())
    return tuple((n, getattr(a, "shape", None), str(getattr(a, "dtype", type(a).__name__))) for n, a in named)


class Runner(Protocol):
    """A loaded model on a device.

    One loop serves three kinds of models: one-pass models are done after one step, diffusion after n, generation at
    its end token.
    """

    @property
    def max_batch(self) -> int:
        """How many states `step` should get at most: the model's `max_batch`, or less where that is no gain."""
        ...

    @property
    def memory_bytes(self) -> int:
        """What the model's weights take of the device's memory."""
        ...

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return what prompts must have in common to share a batch: `shapes_of(prompt)`, or less if `step` pads.

        Called after `admit` took the prompt, by the same thread.
        """
        ...

    def admit(self, prompt: Prompt) -> Any:
        """Return the prompt's initial state; raise what says how the prompt does not fit the model.

        `ProcessorFailed` for names, types and ranks, which are the processor's; `InvalidInput` for a job's own sizes.

        Called by the job's own threads, several at a time, while the device is busy: copies belong here.
        """
        ...

    def step(self, states: Sequence[Any]) -> Sequence[Step]:
        """Advance a batch of states by one step and return what became of each, in order.

        Called by the scheduler's thread only. The states' prompts had the same bucket; they may come from different
        jobs and stand at different steps. Raises `OutOfMemory` or `DeviceLost`; after any other error than the
        latter the states must still be good, because they are tried again in smaller batches.
        """
        ...

    def close(self) -> None:
        """Free the device's memory."""
        ...


#: Loads a model's weights and returns its runner, or raises `ModelUnavailable`.
RunnerFactory = Callable[[Model], Runner]

#: Looks at a model's files and options without reading its weights; raises `ModelUnavailable` as its factory would.
RunnerCheck = Callable[[Model], None]

#: Called often by whoever waits on a job's behalf; raises an `Interruption` when the job must stop.
Check = Callable[[], None]

#: Told how many prompts, of all jobs, shared a batch, and how many of its own prompts a run is further by it: fractions
#: of those that take many steps. By the scheduler's thread, so it only counts.
OnBatch = Callable[[int, float], None]


class Engine(Protocol):
    """Runs the prompts of many jobs at once."""

    @property
    def lost(self) -> bool:
        """Whether the device stopped working: every run fails from now on and the process should be replaced."""
        ...

    def load(self, model: Model, *, check: Check) -> float:
        """Load a model unless it is resident; return the seconds its loading took when it was last loaded."""
        ...

    def run(
        self,
        model: Model,
        prompts: Iterator[Prompt],
        *,
        check: Check,
        cost: int | None = None,
        on_batch: OnBatch | None = None,
    ) -> Generator[Output]:
        """Yield one output per prompt, in order, drawing prompts ahead within a bounded number of bytes.

        Partial outputs of a prompt come before its output, and only once all before it are answered; of those that
        were not taken in time only the latest comes.

        `cost` is the sum of the prompts' costs, if it is known: where a batch has room for one of two jobs, the one
        with less left goes first. `on_batch` is told of each batch that had prompts of this run.
        Prompts are drawn by a thread of the engine. A yielded prompt's arrays belong to the engine: they must not be
        written to afterwards. `check` is called by the caller's thread, between outputs and while waiting for one. An
        error of one prompt is raised here and nowhere else. When the iterator ended, raised or was closed, nothing of
        the run is left: the prompts were closed too.
        """
        ...

    def fill(self, model: Model, prompt: Prompt, *, check: Check) -> int:
        """Find out how many copies of a prompt share a batch: the model's limits, or what the device holds.

        The model's later batches of such prompts are no larger. A single one is not run: it is 1 at least.
        """
        ...

    def close(self) -> None:
        """Stop the scheduler and free the device; runs that are still going raise `Drained`."""
        ...
