"""The runner `fake`: answers at once, always the same, without a network. For tests and for trying out a processor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock.errors import InvalidInput, ModelUnavailable
from penstock.models import Model
from penstock.processors.base import Array, Output, Prompt
from penstock.workers.engine.base import Continue, Done, Step


@dataclass(frozen=True, slots=True)
class FakeState:
    """A prompt and the steps it still takes."""

    prompt: Prompt
    steps_left: int


#: Called before every step with its batch: it may wait, raise what a device would raise, or take notes.
OnStep = Callable[[Sequence[FakeState]], None]


@dataclass(frozen=True, slots=True)
class FakeRunner:
    """Echoes its prompts, or makes a `probability` of `pixels` when it has classes.

    Options of its model: `steps` (1), how many steps a prompt takes; `classes`, a number or a list with one entry per
    class; `on_step`, see `OnStep` (tests only, a catalogue cannot hold it).
    """

    max_batch: int = 1
    steps: int = 1
    classes: int = 0
    on_step: OnStep | None = None

    def admit(self, prompt: Prompt) -> FakeState:
        """Return the prompt with all its steps before it; raise `InvalidInput` if it lacks the `pixels` it needs."""
        if self.classes and getattr(prompt.data.get("pixels"), "ndim", None) != 3:
            raise InvalidInput("the network takes `pixels`, an array (bands, height, width)")
        return FakeState(prompt, self.steps)

    def step(self, states: Sequence[FakeState]) -> Sequence[Step]:
        """Take a step with every state."""
        if self.on_step is not None:
            self.on_step(states)
        return [self._advance(state) for state in states]

    def close(self) -> None:
        """There is nothing to free."""

    def _advance(self, state: FakeState) -> Step:
        if state.steps_left > 1:
            return Continue(replace(state, steps_left=state.steps_left - 1))
        if not self.classes:
            return Done(Output(dict(state.prompt.data)))
        return Done(Output({"probability": softmax(state.prompt.data["pixels"], self.classes)}))


def softmax(pixels: Array, classes: int) -> Array:
    """Return the softmax over `classes` channels, float32 (classes, H, W); fewer bands are used again in turn."""
    logits = np.take(pixels, np.arange(classes), axis=0, mode="wrap").astype(np.float32)
    powers = np.exp(logits - logits.max(axis=0))
    return powers / powers.sum(axis=0)


def load_fake(model: Model) -> FakeRunner:
    """Return the runner; the model's source is not read."""
    options = model.options
    classes = options.get("classes", 0)
    try:
        count = classes if isinstance(classes, int) else len(classes)
        return FakeRunner(model.max_batch, int(options.get("steps", 1)), count, options.get("on_step"))
    except (TypeError, ValueError) as error:
        raise ModelUnavailable(f"the options of model {model.name!r} are not those of the runner 'fake'") from error
