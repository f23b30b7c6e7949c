"""A one-pass network that is its own encoder: an embedder that remembers what it made of each picture or text."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Done, Runner
from penstock.workers.engine.encodings import Encoded, Encodings, counted, encoding_key, limit_bytes
from penstock.workers.engine.runs import size_bytes


@dataclass(frozen=True, slots=True)
class RememberedState:
    """A prompt that was admitted, and the key of its output."""

    key: bytes
    state: Any


@dataclass(frozen=True, slots=True)
class RememberingRunner:
    """Steps a runner whose prompts are done after one step, with those only whose outputs it has not kept."""

    runner: Runner
    model: Model
    encodings: Encodings[Output]

    @property
    def max_batch(self) -> int:
        """The runner's."""
        return self.runner.max_batch

    @property
    def memory_bytes(self) -> int:
        """The runner's weights: outputs lie in the machine's own memory."""
        return self.runner.memory_bytes

    def bucket(self, prompt: Prompt) -> Hashable:
        """The runner's."""
        return self.runner.bucket(prompt)

    def admit(self, prompt: Prompt) -> RememberedState:
        """Hash the prompt and have the runner take it."""
        return RememberedState(encoding_key(self.model, prompt, prompt.data), self.runner.admit(prompt))

    def step(self, states: Sequence[RememberedState]) -> Sequence[Done]:
        """Run what is missing."""

        def make(positions: Sequence[int]) -> list[Output]:
            return [_output(step) for step in self.runner.step([states[at].state for at in positions])]

        return [_done(one) for one in self.encodings.encode([state.key for state in states], make)]

    def close(self) -> None:
        """Forget all, and free the device's memory."""
        self.encodings.clear()
        self.runner.close()


def remembering(runner: Runner, model: Model) -> Runner:
    """Return a runner that keeps outputs, or the same one where the model has no `encoder_cache_bytes`."""
    limit = limit_bytes(model, default=0)
    return RememberingRunner(runner, model, Encodings(limit, size_of=_size)) if limit else runner


def _output(step: object) -> Output:
    if not isinstance(step, Done):
        raise TypeError("only a runner of one pass can be remembered")
    return step.output


def _done(one: Encoded[Output]) -> Done:
    """Return an output that belongs to its job: what is kept stays as it is."""
    data = {name: np.array(value) if isinstance(value, np.ndarray) else value for name, value in one.value.data.items()}
    return Done(replace(one.value, data=data, counts=counted([one])))


def _size(output: Output) -> int:
    return size_bytes(output.data)
