"""An image on its way out of the noise: its own scheduler, its own random numbers, its own step.

The library's schedulers remember earlier steps in lists and tensors that they write into. A step works on a copy of the
scheduler and of the generator, so that the state before it stays good: a step that failed is taken again, and what
shares the batch may be at another step of another schedule.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from penstock.errors import InvalidInput, ProcessorFailed
from penstock.processors.drawing.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class Wish:
    """What a prompt asks for, whatever it tells the network."""

    width: int
    height: int
    steps: int
    seed: int
    guidance_scale: float
    #: How many previews are made on the way, evenly spread.
    previews: int

    @classmethod
    def of(cls, data: Mapping[str, Any], pipeline: Pipeline) -> Wish:
        """Read a prompt's plain data; raise `InvalidInput` for what the network cannot do.

        `width`, `height`, `steps` and `seed` must be there; `guidance_scale` is 1 unless given, `previews` 0.
        """
        width, height, steps, seed, previews = (
            _whole(data, name, least)
            for name, least in (("width", 1), ("height", 1), ("steps", 1), ("seed", 0), ("previews", 0))
        )
        scale = data.get("guidance_scale", 1.0)
        if not isinstance(scale, int | float) or not math.isfinite(scale):
            raise ProcessorFailed("the network takes `guidance_scale`, a number")
        _check_size(width, height, pipeline)
        if steps > pipeline.max_steps:
            raise InvalidInput(f"the model's scheduler takes at most {pipeline.max_steps} steps, not {steps}")
        return cls(width, height, steps, seed, float(scale), previews)

    @property
    def guided(self) -> bool:
        """Whether the network is asked twice a step: with and without what it is told."""
        return self.guidance_scale > 1


@dataclass(frozen=True, slots=True)
class Sample:
    """An image at a step. Steps make new samples and leave this one good."""

    wish: Wish
    #: What the network is told, see `Networks.read`.
    said: tuple[Any, ...]
    #: Never stepped itself: `branch` is.
    scheduler: Any
    random: torch.Generator
    #: Float32 (1, C, h, w).
    image: Tensor
    #: What the network is told, understood; None before the first step.
    told: Tensor | None = None
    #: How many steps were taken.
    at: int = 0

    @property
    def time(self) -> Tensor:
        """Where the image stands in the noise."""
        time: Tensor = self.scheduler.timesteps[self.at]
        return time

    @property
    def count(self) -> int:
        """How many steps the scheduler takes for the wish: with some of them one more, or nearly twice as many."""
        return len(self.scheduler.timesteps)

    @property
    def shows(self) -> bool:
        """Whether the next step is one that a preview is made of."""
        previews, after = self.wish.previews, self.at + 1
        return after < self.count and after * (previews + 1) // self.count > self.at * (previews + 1) // self.count

    def branch(self) -> Sample:
        """Return the same state with a scheduler and random numbers of its own."""
        return replace(self, scheduler=copy.deepcopy(self.scheduler), random=self.random.clone_state())

    def scaled(self) -> Tensor:
        """Return the image as the network takes it. Of a branch: the scheduler notes that it was asked."""
        scaled: Tensor = self.scheduler.scale_model_input(self.image, self.time)
        return scaled

    def stepped(self, noise: Tensor) -> tuple[Sample, Tensor]:
        """Return the state after a step, and what the scheduler expects the image to be in the end. Of a branch.

        `noise` is the network's answer, float32 (1, C, h, w).
        """
        step = self.scheduler.step
        also = {"generator": self.random} if "generator" in inspect.signature(step).parameters else {}
        made = step(noise, self.time, self.image, **also)
        expected = getattr(made, "pred_original_sample", None)
        after = replace(self, image=made.prev_sample, at=self.at + 1)
        return after, made.prev_sample if expected is None else expected


def begin(
    wish: Wish, said: tuple[Any, ...], scheduler: Any, shape: tuple[int, int, int], device: torch.device
) -> Sample:
    """Return noise of a shape (C, h, w). It is drawn on the processor: the same seed is the same noise on every device.

    Raises `InvalidInput` where the scheduler cannot go so many steps.
    """
    scheduler = copy.deepcopy(scheduler)
    try:
        scheduler.set_timesteps(wish.steps)
    except ValueError as error:
        raise InvalidInput(f"the model's scheduler cannot take {wish.steps} steps: {error}") from error
    if float(scheduler.timesteps.max()) >= scheduler.config.num_train_timesteps:
        # With `steps_offset` the library counts one past its own tables.
        raise InvalidInput(f"the model's scheduler cannot take {wish.steps} steps: ask for fewer")
    random = torch.Generator().manual_seed(wish.seed)
    noise = torch.randn((1, *shape), generator=random)
    return Sample(wish, said, scheduler, random, noise.to(device) * scheduler.init_noise_sigma)


def _whole(data: Mapping[str, Any], name: str, least: int) -> int:
    value = data.get(name, 0 if name == "previews" else None)
    if type(value) is not int or not least <= value < 2**63:
        raise ProcessorFailed(f"the network takes `{name}`, a whole number of at least {least}")
    return value


def _check_size(width: int, height: int, pipeline: Pipeline) -> None:
    if not pipeline.sized and (height, width) != pipeline.size:
        own = f"{pipeline.size[1]} x {pipeline.size[0]}"
        raise InvalidInput(f"the network makes images of {own} px only, not {width} x {height}")
    if width % pipeline.factor or height % pipeline.factor:
        raise InvalidInput(f"width and height are multiples of {pipeline.factor}, not {width} x {height}")
