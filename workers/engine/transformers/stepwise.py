"""The library's `generate`, token by token: in a thread of its own that waits before each pass until it is asked.

`generate` runs to the end of a text, and other models and texts must run between its tokens. Its loop, caches,
positions, masks and processors of logits are the library's; Penstock chooses the token (see `sampling`). In turns a
token costs what it cost by a loop of our own; `generate` prepares a text in 2 ms.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from penstock.workers.engine.torch.device import TorchDevice
from penstock.workers.engine.transformers.directory import library
from penstock.workers.engine.transformers.sampling import Sampling


class _Stopped(BaseException):
    """Ends `generate` before the end of the text."""


class _Turns:
    """The two sides of a call of `generate`, one of which runs at a time."""

    def __init__(self) -> None:
        #: True: the next pass may begin; False: the text is not wanted any more.
        self.asked: SimpleQueue[bool] = SimpleQueue()
        #: A chosen token, the error of the call, or None: it has ended.
        self.answers: SimpleQueue[int | BaseException | None] = SimpleQueue()

    def wait(self) -> None:
        """Wait until the next pass is asked for; raise `_Stopped` if none will be."""
        if not self.asked.get():
            raise _Stopped

    def answer(self, generate: Callable[[], object]) -> None:
        """Call `generate` when the first pass is asked for, and hand its end over."""
        try:
            self.wait()
            generate()
        except _Stopped:
            return
        except BaseException as error:
            self.answers.put(error)
        else:
            self.answers.put(None)


class _Chooser:
    """A logits processor, the last of the call's: it hands the chosen token over and leaves no other to the library."""

    def __init__(self, turns: _Turns, sampling: Sampling, made: Sequence[int]) -> None:
        self._turns = turns
        self._sampling = sampling
        self._made = list(made)
        self._count = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG002
        known = self._made[self._count : self._count + 1]
        token = known[0] if known else self._sampling.choose(scores[0].float(), self._count)
        self._count += 1
        if not known:
            self._turns.answers.put(token)
            self._turns.wait()
        chosen = torch.full_like(scores, -torch.inf)
        chosen[:, token] = 0
        return chosen


class Generation:
    """A text under way. It ends with `close`, or when nobody refers to it any more."""

    def __init__(
        self, network: Any, device: TorchDevice, inputs: dict[str, Any], sampling: Sampling, made: Sequence[int]
    ) -> None:
        """Take the inputs of `generate`; `made` are tokens that were chosen before."""
        self._turns = turns = _Turns()

        def generate() -> None:
            with device.running():
                _generate_of(network)(
                    **inputs, logits_processor=[_Chooser(turns, sampling, made)], do_sample=False, num_beams=1,
                    max_new_tokens=sampling.max_new_tokens, return_dict_in_generate=False,
                )  # fmt: skip

        self._thread = threading.Thread(target=turns.answer, args=(generate,), name="generate", daemon=True)
        self._thread.start()
        self._end = weakref.finalize(self, turns.asked.put, False)
        self._end.atexit = False

    def next(self) -> int | None:
        """Run the network for the last tokens and return the next, None after the end; raise the call's errors."""
        self._turns.asked.put(True)
        answer = self._turns.answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def close(self) -> None:
        """End the call and wait until its caches are free."""
        self._end()
        self._thread.join()


def _generate_of(network: Any) -> Callable[..., object]:
    """Return the network's `generate`. Janus's own drops processors of logits where it makes texts."""
    if network.config.model_type == "janus":
        return partial(library().GenerationMixin.generate, network, guidance_scale=None)
    made: Callable[..., object] = network.generate
    return made
