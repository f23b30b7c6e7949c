"""What the engine asks of a runner, and what job threads ask of the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
    """A loaded model on a device. Called by the scheduler's thread only.

    One loop serves three kinds of models: one-pass models are done after one step, diffusion after n, generation at
    its end token.
    """

    def admit(self, prompt: Prompt) -> Any:
        """Return the prompt's initial state; raise `InputError` if the prompt does not fit the model."""
        ...

    def step(self, states: Sequence[Any]) -> Sequence[Step]:
        """Advance a batch of states of the same shape by one step; raise `OutOfMemory` or `DeviceLost`."""
        ...

    def close(self) -> None:
        """Free the device's memory."""
        ...


#: Loads a model's weights and returns its runner, or raises `ModelUnavailable`.
RunnerFactory = Callable[[Model], Runner]


class Engine(Protocol):
    """Runs the prompts of many jobs at once."""

    def run(self, model: Model, prompts: Iterator[Prompt], *, check: Callable[[], None]) -> Iterator[Output]:
        """Yield one output per prompt, in order, drawing prompts ahead within a bounded number of bytes.

        `check` is called between prompts and raises an `Interruption` when the job must stop. An error of one prompt
        is raised here and nowhere else.
        """
        ...

    def close(self) -> None:
        """Stop the scheduler and free the device."""
        ...
