"""Networks that take the inputs of the library's own processor and answer in one pass: found objects, or masks."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from penstock.errors import InvalidInput, first_line
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Done, Runner, shapes_of
from penstock.workers.engine.torch.device import Sent, TorchDevice, arrays_of, weights_bytes
from penstock.workers.engine.transformers.directory import HubDirectory
from penstock.workers.engine.transformers.general import network_inputs

State = Mapping[str, Sent]


@dataclass(frozen=True, slots=True)
class PassRunner:
    """A network of one pass: prompts have `inputs.NAME`, arrays with the batch axis of the library's processor.

    Outputs are the network's arrays `names`, without a batch axis. Prompts with inputs of equal shapes share a batch.
    """

    network: Any
    device: TorchDevice
    names: Sequence[str]
    max_batch: int
    memory_bytes: int

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return the shapes of the inputs."""
        return shapes_of(prompt)

    def admit(self, prompt: Prompt) -> State:
        """Return the inputs on their way to the device."""
        return {name: self.device.send(array) for name, array in network_inputs(prompt).items()}

    def step(self, states: Sequence[State]) -> Sequence[Done]:
        """Run the network once."""
        with self.device.running():
            given = {name: torch.cat([self.device.receive(state[name]) for state in states]) for name in states[0]}
            try:
                outputs = self.network(**given)
            except ValueError as error:
                raise InvalidInput(f"the network rejects this prompt: {first_line(error)}") from error
            answers = [arrays_of(outputs[name]) for name in self.names]
            return [Done(Output(dict(zip(self.names, one, strict=True)))) for one in zip(*answers, strict=True)]

    def close(self) -> None:
        """Free the device's memory."""
        self.device.free(self.network)


def load_word_detector(directory: HubDirectory) -> Runner:
    """Load a network that returns `logits`, float32 (queries, words), and `pred_boxes`, float32 (queries, 4)."""
    return _runner(directory, "AutoModelForZeroShotObjectDetection", "logits", "pred_boxes")


def load_masker(directory: HubDirectory) -> Runner:
    """Load a network that returns `pred_masks`, float32 (objects, masks, h, w), and `iou_scores` (objects, masks)."""
    return _runner(directory, "AutoModelForMaskGeneration", "pred_masks", "iou_scores")


def _runner(directory: HubDirectory, auto_class: str, *names: str) -> PassRunner:
    device = TorchDevice.of(directory.model)
    network = directory.load(auto_class)
    device.place(network)
    return PassRunner(network, device, names, directory.model.max_batch, weights_bytes(network))
