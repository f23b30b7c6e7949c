"""The runner `fake`: the same answers at once without a network, for tests and for trying out a processor."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock.errors import ModelUnavailable, ProcessorFailed
from penstock.models import Model
from penstock.processors.base import Array, Output, Prompt
from penstock.workers.engine.base import Continue, Done, Step, shapes_of


@dataclass(frozen=True, slots=True)
class FakeState:
    """A prompt and the number of its remaining steps."""

    prompt: Prompt
    steps_left: int


#: Called before every step with its batch: may wait, raise a device's errors, or record the batch.
OnStep = Callable[[Sequence[FakeState]], None]


@dataclass(frozen=True, slots=True)
class FakeRunner:
    """A runner that returns each prompt as its output.

    With classes it returns `probability` (classes, H, W) of `pixels`, or `logits` (classes,) of the pixels' means.
    Options of its model: `steps` (1), steps of a prompt; `step_s` (0), seconds of each step; `partials` (false), a
    partial output after every step with the prompt and the number of `steps_left`; `classes`, a number or a list with
    one entry per class; `answer` (`probability`); `memory_bytes` (0); `on_step`, see `OnStep` (for tests: a catalogue
    cannot hold it).
    """

    max_batch: int = 1
    steps: int = 1
    classes: int = 0
    on_step: OnStep | None = None
    partials: bool = False
    memory_bytes: int = 0
    step_s: float = 0
    answer: str = "probability"

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return the prompt's shapes: prompts of the same shapes share a batch."""
        return shapes_of(prompt)

    def admit(self, prompt: Prompt) -> FakeState:
        """Return the prompt before its first step; raise `ProcessorFailed` if it lacks the `pixels` of a classifier."""
        if self.classes and getattr(prompt.data.get("pixels"), "ndim", None) != 3:
            raise ProcessorFailed("the network takes `pixels`, an array (bands, height, width)")
        return FakeState(prompt, self.steps)

    def step(self, states: Sequence[FakeState]) -> Sequence[Step]:
        """Advance every state by a step."""
        if self.on_step is not None:
            self.on_step(states)
        if self.step_s:
            time.sleep(self.step_s)
        return [self._advance(state) for state in states]

    def close(self) -> None:
        """Free nothing."""

    def _advance(self, state: FakeState) -> Step:
        if state.steps_left > 1:
            left = state.steps_left - 1
            partial = Output({**state.prompt.data, "steps_left": left}, partial=True) if self.partials else None
            return Continue(replace(state, steps_left=left), partial, done=1 - left / self.steps)
        if not self.classes:
            return Done(Output(dict(state.prompt.data)))
        pixels = state.prompt.data["pixels"]
        if self.answer == "logits":
            means = pixels.mean(axis=(1, 2), dtype=np.float32)
            return Done(Output({"logits": np.take(means, np.arange(self.classes), mode="wrap")}))
        return Done(Output({"probability": softmax(pixels, self.classes)}))


def softmax(pixels: Array, classes: int) -> Array:
    """Return the softmax over `classes` channels, float32 (classes, H, W); fewer bands are repeated in turn."""
    logits = np.take(pixels, np.arange(classes), axis=0, mode="wrap").astype(np.float32)
    powers = np.exp(logits - logits.max(axis=0))
    return powers / powers.sum(axis=0)


def load_fake(model: Model) -> FakeRunner:
    """Return the runner; the model's source is not read."""
    options = model.options
    classes = options.get("classes", 0)
    try:
        return FakeRunner(
            model.max_batch,
            steps=int(options.get("steps", 1)),
            classes=classes if isinstance(classes, int) else len(classes),
            on_step=options.get("on_step"),
            partials=bool(options.get("partials")),
            memory_bytes=int(options.get("memory_bytes", 0)),
            step_s=float(options.get("step_s", 0)),
            answer=str(options.get("answer", "probability")),
        )
    except (TypeError, ValueError) as error:
        raise ModelUnavailable(f"the options of model {model.name!r} are not those of the runner 'fake'") from error
