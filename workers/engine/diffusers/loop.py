"""Public methods that the loop of every pipeline calls, replaced in a copy: its progress bar and its scheduler's step.

`progress_bar` is the one point between two steps that all classes of the library have: some call back after each step,
in two ways, and some do not.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

#: Largest side of a preview in pixels: latents are shrunk before they are decoded.
PREVIEW_PX = 128


class Loop:
    """The loop of one call of a pipeline: pauses after each step but the last, and knows the image that it expects."""

    def __init__(self, pipeline: Any, pause: Callable[[int, int], None]) -> None:
        """Copy a pipeline, with the same networks and a scheduler of its own.

        `pause` gets the number of steps made and their total.
        """
        self.pipeline = copy.copy(pipeline)
        self.pipeline.scheduler = copy.deepcopy(pipeline.scheduler)
        self.pipeline.progress_bar = functools.partial(_Bar, pause)
        #: The final images that the scheduler expected in the latest step, (N or more, C, h, w); see `watch`.
        self.expected: Tensor | None = None

    def watch(self, generators: Sequence[torch.Generator]) -> None:
        """Keep the images that the scheduler expects, and give it random numbers where the pipeline does not.

        `DiTPipeline` passes no generator: torch's own would serve all calls, and no image could be made again.
        """
        scheduler = self.pipeline.scheduler
        step = scheduler.step
        random = "generator" in inspect.signature(step).parameters

        @functools.wraps(step)
        def watched(noise: Tensor, time: Any, images: Tensor, *rest: Any, **given: Any) -> Any:
            if random and given.get("generator") is None:
                given["generator"] = [*generators] * (len(images) // len(generators))
            made = step(noise, time, images, *rest, **{**given, "return_dict": True})
            expected = getattr(made, "pred_original_sample", None)
            self.expected = made.prev_sample if expected is None else expected
            return made if given.get("return_dict", True) else made.to_tuple()

        scheduler.step = watched

    def preview(self, count: int) -> list[Any]:
        """Return the expected images, at most 128 px, as uint8 (H, W, 1 or 3); empty where they are no numbers."""
        if self.expected is None:
            return []
        vae = getattr(self.pipeline, "vae", None)
        images = _shrunk(self.expected[:count], 1 if vae is None else 2 ** (len(vae.config.block_out_channels) - 1))
        if vae is not None:
            latents = images / vae.config.scaling_factor + (vae.config.shift_factor or 0)
            images = vae.decode(latents.to(vae.dtype), return_dict=False)[0]
        return pixels(images / 2 + 0.5)


class _Bar:
    """A progress bar that calls `pause` after each step but the last, and draws nothing."""

    def __init__(self, pause: Callable[[int, int], None], iterable: Any = None, total: int | None = None) -> None:
        self._pause, self._steps = pause, iterable
        self._made, self._total = 0, len(iterable) if total is None else total

    def __iter__(self) -> Iterator[Any]:
        for step in self._steps:
            yield step
            self.update()

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self, steps: int = 1) -> None:
        self._made += steps
        if self._made < self._total:
            self._pause(self._made, self._total)

    def close(self) -> None:
        pass


def pixels(images: Tensor) -> list[Any]:
    """Return images (N, C, H, W) from 0 to 1 as uint8 (H, W, C) each; empty where they are no numbers."""
    if not bool(images.isfinite().all()):
        return []
    whole = (images.float().clamp(0, 1) * 255).round().to(torch.uint8)
    return list(whole.permute(0, 2, 3, 1).contiguous().cpu().numpy())


def _shrunk(images: Tensor, factor: int) -> Tensor:
    """Return images (N, C, h, w) shrunk so that the decoded image is no larger than a preview."""
    stride = -(-max(images.shape[-2:]) // max(1, PREVIEW_PX // factor))
    return torch.nn.functional.avg_pool2d(images, stride, ceil_mode=True) if stride > 1 else images
