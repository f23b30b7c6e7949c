"""The library's `generate`, token by token: a call that waits before each pass until it is resumed.

Its loop, caches, positions, masks and processors of logits are the library's; Penstock chooses the token (see
`sampling`). In turns a token costs what it cost by a loop of our own; `generate` prepares a text in 2 ms.
"""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from penstock.errors import InvalidInput, first_line
from penstock.processors.base import Output
from penstock.workers.engine.base import Continue, Done, Step
from penstock.workers.engine.resumable import Pause, Resumable
from penstock.workers.engine.torch.device import NetworkRunner, TorchDevice
from penstock.workers.engine.transformers.directory import library
from penstock.workers.engine.transformers.sampling import Sampling


@dataclass(slots=True, kw_only=True)
class Held:
    """A prompt under way. Its cache grows in place, so it advances only once from each number of steps."""

    #: The number of steps made so far, and the output of the last of them: a step would hold this object in a circle.
    made: int = 0
    last: Output | None = None
    generation: Resumable | None = None

    def close(self) -> None:
        """Free the cache."""
        generation, self.generation = self.generation, None
        if generation is not None:
            generation.close()


HeldT = TypeVar("HeldT", bound=Held)


@dataclass(frozen=True, slots=True)
class HeldState(Generic[HeldT]):
    """A prompt after a number of steps."""

    held: HeldT
    at: int = 0


@dataclass(frozen=True, slots=True)
class StepwiseRunner(NetworkRunner, Generic[HeldT]):
    """A runner of calls of `generate`: each step chooses one more token for every prompt."""

    #: Calls under way.
    generations: weakref.WeakSet[Resumable] = field(default_factory=weakref.WeakSet, kw_only=True, repr=False)

    def step(self, states: Sequence[HeldState[HeldT]]) -> Sequence[Step]:
        """Choose one more token for every prompt."""
        with self.device.running(grows=True):
            return [self._advance(state) for state in states]

    def close(self) -> None:
        """Free the device's memory."""
        for generation in list(self.generations):
            generation.close()
        self.device.free(self.network)

    @abstractmethod
    def advance(self, held: HeldT) -> Output | None:
        """Choose one more token; return an output if there is news. The next step begins an ended call anew."""

    def _advance(self, state: HeldState[HeldT]) -> Step:
        """Return the step of a state; the one made before if the engine repeats its latest step after an error."""
        held = state.held
        if state.at >= held.made:
            try:
                held.last = self.advance(held)
            except ValueError as error:
                held.close()
                raise InvalidInput(f"the network rejects this prompt: {first_line(error)}") from error
            except BaseException:
                held.close()  # the cache may be half written: the next step begins anew
                raise
            held.made += 1
        if held.last is not None and not held.last.partial:
            return Done(held.last)
        return Continue(HeldState(held, held.made), held.last)


class Chooser:
    """A logits processor, the last of the call's: it hands the chosen token over and leaves no other to the library."""

    def __init__(self, pause: Pause, sampling: Sampling, made: Sequence[int], drawn: int = 0) -> None:
        """Choose tokens after `made`, those that were chosen before; `drawn` more were chosen in earlier calls."""
        self._pause = pause
        self._sampling = sampling
        self._made = list(made)
        self._drawn = drawn
        self._count = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG002
        known = self._made[self._count : self._count + 1]
        token = known[0] if known else self._sampling.choose(scores[0].float(), self._drawn + self._count)
        self._count += 1
        if not known:
            self._pause(token)
        chosen = torch.full_like(scores, -torch.inf)
        chosen[:, token] = 0
        return chosen


def begun(
    network: Any,
    device: TorchDevice,
    inputs: dict[str, Any],
    sampling: Sampling,
    made: Sequence[int],
    around: AbstractContextManager[None],
) -> Resumable:
    """Return a call of `generate` with these inputs, which pauses with each token after `made`, those chosen before.

    It runs inside of `around`, in a thread of its own.
    """

    def generate(pause: Pause) -> None:
        with device.running(), around:
            _generate_of(network)(
                **inputs, logits_processor=[Chooser(pause, sampling, made)], do_sample=False, num_beams=1,
                max_new_tokens=sampling.max_new_tokens, return_dict_in_generate=False,
            )  # fmt: skip

    return Resumable(generate)


def _generate_of(network: Any) -> Callable[..., object]:
    """Return the network's `generate`. Janus's own drops processors of logits where it makes texts."""
    if network.config.model_type == "janus":
        return partial(library().GenerationMixin.generate, network, guidance_scale=None)
    made: Callable[..., object] = network.generate
    return made
