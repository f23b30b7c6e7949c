"""The state of an image in diffusion: its own scheduler, random numbers and step.

The library's schedulers keep earlier steps in lists and tensors that they write into. A step works on a copy of the
scheduler and of the generator, so that the state before stays valid: a failed step is repeated, and the other images of
a batch may be at other steps of other schedules.
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
from penstock.processors.image_generation.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class ImageSettings:
    """A prompt's settings beside the condition."""

    width: int
    height: int
    steps: int
    seed: int
    guidance_scale: float
    #: Number of previews, at even distances.
    previews: int

    @classmethod
    def of(cls, data: Mapping[str, Any], pipeline: Pipeline) -> ImageSettings:
        """Read a prompt's plain data; raise `InvalidInput` for settings that the network does not support.

        `width`, `height`, `steps` and `seed` are required; `guidance_scale` defaults to 1, `previews` to 0.
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
        """True if each step runs the network twice: with and without the condition."""
        return self.guidance_scale > 1


@dataclass(frozen=True, slots=True)
class Sample:
    """An image at a step. Steps make new samples and leave this one valid."""

    settings: ImageSettings
    #: Condition, see `Networks.read`.
    condition: tuple[Any, ...]
    #: Never stepped: `branch` steps a copy.
    scheduler: Any
    random: torch.Generator
    #: Float32 (1, C, h, w).
    image: Tensor
    #: Encoded condition; None before the first step.
    encoded: Tensor | None = None
    #: Number of steps so far.
    at: int = 0

    @property
    def time(self) -> Tensor:
        """The scheduler's time of the next step."""
        time: Tensor = self.scheduler.timesteps[self.at]
        return time

    @property
    def count(self) -> int:
        """The number of the scheduler's steps: some schedulers take one more than asked, or nearly twice as many."""
        return len(self.scheduler.timesteps)

    @property
    def shows(self) -> bool:
        """True if the next step makes a preview."""
        previews, after = self.settings.previews, self.at + 1
        return after < self.count and after * (previews + 1) // self.count > self.at * (previews + 1) // self.count

    def branch(self) -> Sample:
        """Return a copy with a scheduler and random numbers of its own."""
        return replace(self, scheduler=copy.deepcopy(self.scheduler), random=self.random.clone_state())

    def scaled(self) -> Tensor:
        """Return the image scaled for the network. Call on a branch: the scheduler's state changes."""
        scaled: Tensor = self.scheduler.scale_model_input(self.image, self.time)
        return scaled

    def stepped(self, noise: Tensor) -> tuple[Sample, Tensor]:
        """Return the state after a step, and the scheduler's expected final image. Call on a branch.

        `noise` is the network's answer, float32 (1, C, h, w).
        """
        step = self.scheduler.step
        also = {"generator": self.random} if "generator" in inspect.signature(step).parameters else {}
        made = step(noise, self.time, self.image, **also)
        expected = getattr(made, "pred_original_sample", None)
        after = replace(self, image=made.prev_sample, at=self.at + 1)
        return after, made.prev_sample if expected is None else expected


def begin(
    settings: ImageSettings,
    condition: tuple[Any, ...],
    scheduler: Any,
    shape: tuple[int, int, int],
    device: torch.device,
) -> Sample:
    """Return initial noise of a shape (C, h, w), drawn on the CPU: a seed gives the same noise on every device.

    Raises `InvalidInput` if the scheduler does not support the number of steps.
    """
    scheduler = copy.deepcopy(scheduler)
    try:
        scheduler.set_timesteps(settings.steps)
    except ValueError as error:
        raise InvalidInput(f"the model's scheduler cannot take {settings.steps} steps: {error}") from error
    if float(scheduler.timesteps.max()) >= scheduler.config.num_train_timesteps:
        # With `steps_offset` the library counts one step past its own tables.
        raise InvalidInput(f"the model's scheduler cannot take {settings.steps} steps: ask for fewer")
    random = torch.Generator().manual_seed(settings.seed)
    noise = torch.randn((1, *shape), generator=random)
    return Sample(settings, condition, scheduler, random, noise.to(device) * scheduler.init_noise_sigma)


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
