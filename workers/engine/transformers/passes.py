"""Networks that take the inputs of the library's own processor and answer in one pass: found objects, or masks."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch

from penstock.errors import InvalidInput, ProcessorFailed, first_line
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Done, Runner, shapes_of
from penstock.workers.engine.torch.device import NetworkRunner, Sent, TorchDevice, arrays_of, weights_bytes
from penstock.workers.engine.transformers.directory import HubDirectory
from penstock.workers.engine.transformers.inputs import network_inputs

#: Name of the list of the network's outputs that a prompt wants.
WANTED = "outputs"


@dataclass(frozen=True, slots=True)
class PassState:
    """A prompt on its way to the device."""

    inputs: Mapping[str, Sent]
    wanted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PassRunner(NetworkRunner):
    """A network of one pass: prompts have `inputs.NAME`, arrays with the batch axis of the library's processor.

    A prompt names the wanted `outputs` of the network, whose arrays come without the batch axis. Prompts with inputs of
    equal shapes share a batch.
    """

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return the shapes of the inputs, and the wanted outputs."""
        return shapes_of(prompt), _wanted(prompt)

    def admit(self, prompt: Prompt) -> PassState:
        """Return the inputs on their way to the device."""
        inputs = {name: self.device.send(array) for name, array in network_inputs(prompt).items()}
        return PassState(inputs, _wanted(prompt))

    def step(self, states: Sequence[PassState]) -> Sequence[Done]:
        """Run the network once."""
        with self.device.running():
            names, wanted = states[0].inputs, states[0].wanted
            given = {name: torch.cat([self.device.receive(state.inputs[name]) for state in states]) for name in names}
            try:
                outputs = self.network(**given)
            except ValueError as error:
                raise InvalidInput(f"the network rejects this prompt: {first_line(error)}") from error
            answers = [arrays_of(outputs[name]) for name in wanted]
            return [Done(Output(dict(zip(wanted, one, strict=True)))) for one in zip(*answers, strict=True)]


def load_word_detector(directory: HubDirectory) -> Runner:
    """Load a network that finds what words name."""
    return _runner(directory, "AutoModelForZeroShotObjectDetection")


def load_masker(directory: HubDirectory) -> Runner:
    """Load a network that outlines what points and boxes show."""
    return _runner(directory, "AutoModelForMaskGeneration")


def _runner(directory: HubDirectory, auto_class: str) -> PassRunner:
    device = TorchDevice.of(directory.model)
    network = directory.load(auto_class)
    device.place(network)
    return PassRunner(network, device, directory.model.max_batch, weights_bytes(network))


def _wanted(prompt: Prompt) -> tuple[str, ...]:
    names = prompt.data.get(WANTED)
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ProcessorFailed(f"a prompt names the network's outputs that it wants in the list `{WANTED}`")
    return tuple(names)
