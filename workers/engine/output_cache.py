"""A one-pass runner with a cache of outputs: an embedder computes each image or text once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Done, Runner
from penstock.workers.engine.encoder_cache import Encoded, EncoderCache, counted, encoding_key, limit_bytes
from penstock.workers.engine.runs import size_bytes


@dataclass(frozen=True, slots=True)
class CachedState:
    """An admitted prompt and the cache key of its output."""

    key: bytes
    state: Any


@dataclass(frozen=True, slots=True)
class CachingRunner:
    """A runner of one pass that steps only prompts whose outputs are not cached."""

    runner: Runner
    model: Model
    encodings: EncoderCache[Output]

    @property
    def max_batch(self) -> int:
        """The runner's."""
        return self.runner.max_batch

    @property
    def memory_bytes(self) -> int:
        """The bytes of the runner's weights: outputs are cached in the machine's own memory."""
        return self.runner.memory_bytes

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return the bucket of the wrapped runner."""
        return self.runner.bucket(prompt)

    def admit(self, prompt: Prompt) -> CachedState:
        """Hash the prompt and admit it to the runner."""
        return CachedState(encoding_key(self.model, prompt, prompt.data), self.runner.admit(prompt))

    def step(self, states: Sequence[CachedState]) -> Sequence[Done]:
        """Run the prompts that are not cached."""

        def make(positions: Sequence[int]) -> list[Output]:
            return [_output(step) for step in self.runner.step([states[at].state for at in positions])]

        return [_done(one) for one in self.encodings.encode([state.key for state in states], make)]

    def close(self) -> None:
        """Drop the cache and free the device's memory."""
        self.encodings.clear()
        self.runner.close()


def with_output_cache(runner: Runner, model: Model) -> Runner:
    """Return the runner with a cache of outputs, or without one if the model has no `encoder_cache_bytes`."""
    limit = limit_bytes(model, default=0)
    return CachingRunner(runner, model, EncoderCache(limit, size_of=_size)) if limit else runner


def _output(step: object) -> Output:
    if not isinstance(step, Done):
        raise TypeError("only outputs of a runner of one pass can be cached")
    return step.output


def _done(one: Encoded[Output]) -> Done:
    """Return a copy of an output for its job; the cached one stays as it is."""
    data = {name: np.array(value) if isinstance(value, np.ndarray) else value for name, value in one.value.data.items()}
    return Done(replace(one.value, data=data, counts=counted([one])))


def _size(output: Output) -> int:
    return size_bytes(output.data)
