"""Networks that answer in one pass, each with the reader of its prompts and the maker of its answers.

Prompts of equal shapes share a batch, so nothing is padded here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from penstock.errors import InvalidInput, ProcessorFailed, first_line
from penstock.processors.base import Array, Output, Prompt, Value
from penstock.workers.engine.base import Done, Runner, shapes_of
from penstock.workers.engine.torch.device import NetworkRunner, Sent, TorchDevice, arrays_of, weights_bytes
from penstock.workers.engine.transformers.directory import HubDirectory
from penstock.workers.engine.transformers.inputs import network_inputs

#: Name of the list of the network's outputs that a prompt wants.
WANTED = "outputs"

#: Returns a prompt's inputs by the network's names, each with a batch axis of 1, and what its answer needs to know of
#: the prompt. Raises `InvalidInput` and `ProcessorFailed`.
Read = Callable[[Prompt], tuple[Mapping[str, Array], Any]]
#: Makes the data of each prompt's output from a network, the inputs of a batch, and what `Read` returned beside them.
Answer = Callable[[Any, Mapping[str, Tensor], Sequence[Any]], Sequence[Mapping[str, Value]]]


@dataclass(frozen=True, slots=True)
class PassState:
    """A prompt on its way to the device."""

    inputs: Mapping[str, Sent]
    asked: Any


@dataclass(frozen=True, slots=True)
class PassRunner(NetworkRunner):
    """A network of one pass; the loading functions describe its prompts and outputs."""

    read: Read
    answer: Answer
    #: Plain values of a prompt that a batch has in common.
    shared: tuple[str, ...] = ()
    channels_last: bool = False

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return the shapes of the inputs, and the values that a batch has in common."""
        return shapes_of(prompt), *(str(prompt.data.get(name)) for name in self.shared)

    def admit(self, prompt: Prompt) -> PassState:
        """Return the inputs on their way to the device."""
        arrays, asked = self.read(prompt)
        sent = {
            name: self.device.send(array, channels_last=self.channels_last and array.ndim == 4)
            for name, array in arrays.items()
        }
        return PassState(sent, asked)

    def step(self, states: Sequence[PassState]) -> Sequence[Done]:
        """Run the network once."""
        with self.device.running():
            inputs = {name: self.device.join([state.inputs[name] for state in states]) for name in states[0].inputs}
            answers = self.answer(self.network, inputs, [state.asked for state in states])
            return [Done(Output(answer)) for answer in answers]


def pass_runner(
    directory: HubDirectory,
    network: Any,
    read: Read,
    answer: Answer,
    *,
    shared: tuple[str, ...] = (),
    channels_last: bool = False,
    alone_on_cpu: bool = False,
) -> PassRunner:
    """Place a network on the device of its record, and return its runner; on a CPU prompts may each run alone."""
    model, device = directory.model, TorchDevice.of(directory.model)
    device.place(network, channels_last=channels_last)
    batch = 1 if alone_on_cpu and device.is_cpu else model.max_batch
    return PassRunner(network, device, batch, weights_bytes(network), read, answer, shared, channels_last)


def named(**tensors: Tensor) -> list[dict[str, Array]]:
    """Return the data of each output from the arrays of a batch, by name."""
    return [dict(zip(tensors, one, strict=True)) for one in zip(*map(arrays_of, tensors.values()), strict=True)]


def load_word_detector(directory: HubDirectory) -> Runner:
    """Load a network that finds what words name."""
    return _of_library(directory, "AutoModelForZeroShotObjectDetection")


def load_masker(directory: HubDirectory) -> Runner:
    """Load a network that outlines what points and boxes show."""
    return _of_library(directory, "AutoModelForMaskGeneration")


def _of_library(directory: HubDirectory, auto_class: str) -> PassRunner:
    """Return the runner of a network that takes the inputs of the library's own processor.

    Prompts have `inputs.NAME`, arrays with the batch axis of the library's processor, and name the wanted `outputs` of
    the network, whose arrays come without the batch axis.
    """
    return pass_runner(directory, directory.load(auto_class), _library_inputs, _wanted_outputs, shared=(WANTED,))


def _library_inputs(prompt: Prompt) -> tuple[Mapping[str, Array], Sequence[str]]:
    names = prompt.data.get(WANTED)
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ProcessorFailed(f"a prompt names the network's outputs that it wants in the list `{WANTED}`")
    return network_inputs(prompt), names


def _wanted_outputs(
    network: Any, inputs: Mapping[str, Tensor], asked: Sequence[Sequence[str]]
) -> Sequence[Mapping[str, Value]]:
    try:
        outputs = network(**inputs)
    except ValueError as error:
        raise InvalidInput(f"the network rejects this prompt: {first_line(error)}") from error
    return named(**{name: outputs[name] for name in asked[0]})
