"""Images out of noise: each step takes a little noise out of every image of the batch.

Images of one size share a batch, whatever their jobs, steps, schedules and seeds. On a CPU each has a forward pass of
its own inside the step, so that an image has the same bits whatever shares the batch, and larger passes gain nothing.
On a device the batch is one pass, and neighbours change the last bits.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from penstock.errors import ProcessorFailed
from penstock.models import Model
from penstock.processors.base import Array, Output, Prompt
from penstock.processors.drawing.pipeline import Pipeline
from penstock.workers.engine.base import Continue, Done, Runner, Step
from penstock.workers.engine.diffusers.networks import Networks, load_networks, shrunk
from penstock.workers.engine.diffusers.parts import Directory, log
from penstock.workers.engine.diffusers.sampling import Sample, Wish, begin
from penstock.workers.engine.torch_device import TorchDevice, weights_bytes


@dataclass(frozen=True, slots=True)
class DiffusionRunner:
    """Makes images: prompts have plain data, see `Wish.of`, and what the network is told: `input_ids` and
    `negative_ids`, int64 (T,), or `label`, or nothing.

    Outputs have `image`, uint8 (H, W, 1 or 3). Partial ones come as often as the prompt asks for `previews`: `preview`
    is what the image is expected to be, small, after `step` steps.
    """

    networks: Networks
    scheduler: Any
    pipeline: Pipeline
    device: TorchDevice
    max_batch: int
    memory_bytes: int
    #: Whether a batch is one forward pass.
    together: bool

    def bucket(self, prompt: Prompt) -> Hashable:
        """Images of one size share a batch, if all or none of them are guided."""
        wish = Wish.of(prompt.data, self.pipeline)
        return wish.width, wish.height, wish.guided

    def admit(self, prompt: Prompt) -> Sample:
        """Return the noise that the image begins as."""
        wish = Wish.of(prompt.data, self.pipeline)
        factor = self.pipeline.factor
        shape = self.networks.channels, wish.height // factor, wish.width // factor
        said = self.networks.read(prompt.data, guided=wish.guided)
        return begin(wish, said, self.scheduler, shape, self.device.device)

    def step(self, states: Sequence[Sample]) -> Sequence[Step]:
        """Take a step with every image."""
        with self.device.running():
            branches = [sample.branch() for sample in self._told(states)]
            return [self._advance(*one) for one in zip(branches, self._noise(branches), strict=True)]

    def close(self) -> None:
        """Free the device's memory."""
        for module in self.networks.modules:
            self.device.free(module)

    def _told(self, states: Sequence[Sample]) -> list[Sample]:
        """Have new samples' texts understood: once for all images of one text that begin together."""
        new = {state.said for state in states if state.told is None}
        told = {said: self.networks.understand(said, self.device.device) for said in new}
        return [state if state.told is not None else replace(state, told=told[state.said]) for state in states]

    def _noise(self, samples: Sequence[Sample]) -> Sequence[Tensor]:
        if self.together:
            return self._predict(samples)[:, None].unbind()
        return [self._predict([sample]) for sample in samples]

    def _predict(self, samples: Sequence[Sample]) -> Tensor:
        device = self.device.device
        images = torch.cat([sample.scaled() for sample in samples])
        times = torch.stack([sample.time for sample in samples]).to(device)
        guidance = None
        if samples[0].wish.guided:
            scales = [sample.wish.guidance_scale for sample in samples]
            guidance = torch.tensor(scales, device=device).reshape(-1, 1, 1, 1)
        told = [sample.told for sample in samples if sample.told is not None]
        return self.networks.predict(images, times, told, guidance)

    def _advance(self, branch: Sample, noise: Tensor) -> Step:
        after, expected = branch.stepped(noise)
        if after.at == after.count:
            return Done(Output({"image": self._pixels(after.image)}))
        partial = None
        if branch.shows:
            preview = self._pixels(shrunk(expected, self.pipeline.factor))
            partial = Output({"preview": preview, "step": after.at}, partial=True)
        return Continue(after, partial, done=after.at / after.count)

    def _pixels(self, image: Tensor) -> Array:
        """Return uint8 (H, W, 1 or 3) of one image."""
        colours = (self.networks.decode(image)[0] / 2 + 0.5).clamp(0, 1)
        if not bool(colours.isfinite().all()):
            raise ProcessorFailed("the network's answer is not a number: its weights do not fit its precision")
        return (colours * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous().cpu().numpy()


def load_diffusers(model: Model) -> Runner:
    """Load a directory in diffusers' format; raise `ModelUnavailable` naming what is missing, damaged or not known."""
    directory = Directory.of(model)
    networks, scheduler = load_networks(directory), directory.scheduler()
    if (directory.path / "safety_checker").is_dir():
        log.warning("diffusers.safety_checker_left_out", model=model.name)
    device = TorchDevice.of(model)
    for module in networks.modules:
        device.place(module)
    return DiffusionRunner(
        networks,
        scheduler,
        directory.pipeline,
        device,
        max_batch=model.max_batch,
        memory_bytes=sum(map(weights_bytes, networks.modules)),
        together=not device.is_cpu,
    )


def check_diffusers(model: Model) -> None:
    """Look at what `load_diffusers` would load, without reading any weights; raise `ModelUnavailable`."""
    Directory.of(model)
