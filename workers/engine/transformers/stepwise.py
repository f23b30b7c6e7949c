"""The library's `generate`, token by token: a call that waits before each pass until it is resumed.

Its loop, caches, positions, masks and processors of logits are the library's; Penstock chooses the token (see
`sampling`). In turns a token costs what it cost by a loop of our own; `generate` prepares a text in 2 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from penstock.workers.engine.resumable import Pause, Resumable
from penstock.workers.engine.torch.device import TorchDevice
from penstock.workers.engine.transformers.directory import library
from penstock.workers.engine.transformers.sampling import Sampling


class _Chooser:
    """A logits processor, the last of the call's: it hands the chosen token over and leaves no other to the library."""

    def __init__(self, pause: Pause, sampling: Sampling, made: Sequence[int]) -> None:
        self._pause = pause
        self._sampling = sampling
        self._made = list(made)
        self._count = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG002
        known = self._made[self._count : self._count + 1]
        token = known[0] if known else self._sampling.choose(scores[0].float(), self._count)
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
                **inputs, logits_processor=[_Chooser(pause, sampling, made)], do_sample=False, num_beams=1,
                max_new_tokens=sampling.max_new_tokens, return_dict_in_generate=False,
            )  # fmt: skip

    return Resumable(generate)


def _generate_of(network: Any) -> Callable[..., object]:
    """Return the network's `generate`. Janus's own drops processors of logits where it makes texts."""
    if network.config.model_type == "janus":
        return partial(library().GenerationMixin.generate, network, guidance_scale=None)
    made: Callable[..., object] = network.generate
    return made
