"""Image generation by diffusion: each step removes some noise from every image of the batch.

Images of one size share a batch, whatever their jobs, steps, schedules and seeds. On a CPU each image has a forward
pass of its own inside the step: its bits do not depend on the batch, and larger passes are not faster. On a GPU the
batch is one pass, and the other images of the batch change the last bits.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from penstock.errors import ProcessorFailed
from penstock.models import Model
from penstock.processors.base import Array, Output, Prompt
from penstock.processors.image_generation.pipeline import Pipeline
from penstock.workers.engine.base import Continue, Done, Runner, Step
from penstock.workers.engine.diffusers.calls import TASK, CallRunner, DrawingState, pipelines_of
from penstock.workers.engine.diffusers.networks import Networks, load_networks, shrunk
from penstock.workers.engine.diffusers.parts import Directory, log
from penstock.workers.engine.diffusers.sampling import ImageSettings, Sample, begin
from penstock.workers.engine.torch.device import TorchDevice, weights_bytes


@dataclass(frozen=True, slots=True)
class DiffusionRunner:
    """A diffusion pipeline.

    Prompts have plain data, see `ImageSettings.of`, and the condition: `input_ids` and `negative_ids`, int64 (T,), or
    `label`, or nothing.
    Outputs have `image`, uint8 (H, W, 1 or 3). A prompt gets `previews` partial outputs: `preview` is a small image of
    the expected result after `step` steps.
    """

    networks: Networks
    scheduler: Any
    pipeline: Pipeline
    device: TorchDevice
    max_batch: int
    memory_bytes: int
    #: True: a batch is one forward pass.
    together: bool
    #: Runs the library's own pipelines with the same networks, for prompts that name a task.
    calls: CallRunner | None = None

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return size and guidance: images of one size share a batch, if all or none of them are guided."""
        if self.calls is not None and TASK in prompt.data:
            return self.calls.bucket(prompt)
        settings = ImageSettings.of(prompt.data, self.pipeline)
        return settings.width, settings.height, settings.guided

    def admit(self, prompt: Prompt) -> Sample | DrawingState:
        """Return the image's initial noise."""
        if self.calls is not None and TASK in prompt.data:
            return self.calls.admit(prompt)
        settings = ImageSettings.of(prompt.data, self.pipeline)
        factor = self.pipeline.factor
        shape = self.networks.channels, settings.height // factor, settings.width // factor
        condition = self.networks.read(prompt.data, guided=settings.guided)
        return begin(settings, condition, self.scheduler, shape, self.device.device)

    def step(self, states: Sequence[Any]) -> Sequence[Step]:
        """Advance every image by a step."""
        if self.calls is not None and isinstance(states[0], DrawingState):
            return self.calls.step(states)
        with self.device.running():
            branches = [sample.branch() for sample in self._encoded(states)]
            return [self._advance(*one) for one in zip(branches, self._noise(branches), strict=True)]

    def close(self) -> None:
        """Free the device's memory."""
        for module in self.networks.modules:
            self.device.free(module)

    def _encoded(self, states: Sequence[Sample]) -> list[Sample]:
        """Encode the conditions of new samples: once for all images with one condition that begin together."""
        new = {state.condition for state in states if state.encoded is None}
        made = {condition: self.networks.encode(condition, self.device.device) for condition in new}
        return [
            state if state.encoded is not None else replace(state, encoded=made[state.condition]) for state in states
        ]

    def _noise(self, samples: Sequence[Sample]) -> Sequence[Tensor]:
        if self.together:
            return self._predict(samples)[:, None].unbind()
        return [self._predict([sample]) for sample in samples]

    def _predict(self, samples: Sequence[Sample]) -> Tensor:
        device = self.device.device
        images = torch.cat([sample.scaled() for sample in samples])
        times = torch.stack([sample.time for sample in samples]).to(device)
        guidance = None
        if samples[0].settings.guided:
            scales = [sample.settings.guidance_scale for sample in samples]
            guidance = torch.tensor(scales, device=device).reshape(-1, 1, 1, 1)
        encoded = [sample.encoded for sample in samples if sample.encoded is not None]
        return self.networks.predict(images, times, encoded, guidance)

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
    """Load a directory in diffusers' format; raise `ModelUnavailable` for a missing, damaged or unknown part."""
    directory = Directory.of(model)
    if (directory.path / "safety_checker").is_dir():
        log.warning("diffusers.safety_checker_left_out", model=model.name)
    device = TorchDevice.of(model)
    return _stepped(directory, device) if directory.pipeline.stepped else _called(directory, device)


def _stepped(directory: Directory, device: TorchDevice) -> Runner:
    networks, model = load_networks(directory), directory.model
    calls = None
    if directory.pipeline.calls:
        named = {part: getattr(networks, part) for part in directory.networks}
        calls = _runner(directory, device, named)
    for module in networks.modules:
        device.place(module)
    return DiffusionRunner(
        networks,
        directory.scheduler(),
        directory.pipeline,
        device,
        max_batch=model.max_batch,
        memory_bytes=sum(map(weights_bytes, networks.modules)),
        together=not device.is_cpu,
        calls=calls,
    )


def _called(directory: Directory, device: TorchDevice) -> Runner:
    """Load a pipeline whose images are all made by the library's calls, in the record's precision and no other."""
    networks = {part: directory.network(part, dtype=device.dtype) for part in directory.networks}
    runner = _runner(directory, replace(device, dtype=torch.float32), networks)
    for module in runner.modules:
        device.place(module)
    return runner


def _runner(directory: Directory, device: TorchDevice, networks: Mapping[str, Any]) -> CallRunner:
    modules = list(networks.values())
    return CallRunner(
        pipelines_of(directory.base(networks), directory.pipeline.calls),
        modules,
        device,
        max_batch=directory.model.max_batch,
        memory_bytes=sum(map(weights_bytes, modules)),
    )


def check_diffusers(model: Model) -> None:
    """Check the files that `load_diffusers` would load, without reading weights; raise `ModelUnavailable`."""
    Directory.of(model)
