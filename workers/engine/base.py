"""What the engine asks of a runner, and what job threads ask of the engine."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
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


Step = Done | Continue


class Runner(Protocol):
    """A loaded model on a device.

    One loop serves three kinds of models: one-pass models are done after one step, diffusion after n, generation at
    its end token.
    """

    @property
    def max_batch(self) -> int:
        """How many states `step` should get at most: the model's `max_batch`, or less where that is no gain."""
        ...

    def admit(self, prompt: Prompt) -> Any:
        """Return the prompt's initial state; raise `InvalidInput` if the prompt does not fit the model.

        Called by the job's own threads, several at a time, while the device is busy: copies belong here.
        """
        ...

    def step(self, states: Sequence[Any]) -> Sequence[Step]:
        """Advance a batch of states by one step and return what became of each, in order.

        Called by the scheduler's thread only. The states' prompts had the same shapes and dtypes; they may come from
        different jobs and stand at different steps. Raises `OutOfMemory` or `DeviceLost`; after any other error than
        the latter the states must still be good, because they are tried again in smaller batches.
        """
        ...

    def close(self) -> None:
        """Free the device's memory."""
        ...


#: Loads a model's weights and returns its runner, or raises `ModelUnavailable`.
RunnerFactory = Callable[[Model], Runner]

#: Called often by whoever waits on a job's behalf; raises an `Interruption` when the job must stop.
Check = Callable[[], None]


class Engine(Protocol):
    """Runs the prompts of many jobs at once."""

    @property
    def lost(self) -> bool:
        """Whether the device stopped working: every run fails from now on and the process should be replaced."""
        ...

    def load(self, model: Model, *, check: Check) -> float:
        """Load a model unless it is resident; return the seconds its loading took when it was last loaded."""
        ...

    def run(self, model: Model, prompts: Iterator[Prompt], *, check: Check) -> Generator[Output]:
        """Yield one output per prompt, in order, drawing prompts ahead within a bounded number of bytes.

        Prompts are drawn by a thread of the engine. A yielded prompt's arrays belong to the engine: they must not be
        written to afterwards. `check` is called by the caller's thread, between outputs and while waiting for one. An
        error of one prompt is raised here and nowhere else. When the iterator ended, raised or was closed, nothing of
        the run is left: the prompts were closed too.
        """
        ...

    def close(self) -> None:
        """Stop the scheduler and free the device; runs that are still going raise `Drained`."""
        ...
