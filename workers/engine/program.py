"""A directory for the runner `torch`: `penstock.toml`, and an exported program or the weights of a network we know.

    network = "csmask-unet"                # with model.safetensors: everything else is known

or, beside a `program.pt2` made by `torch.export.save`, which takes the inputs in this order with a batch axis before
their own:

    multiples = { H = 16, W = 16 }         # what sides must be a multiple of
    [inputs.pixels]
    dtype = "float32"
    shape = ["bands=6", "H", "W"]          # a number, a name for any number, or a name with the number it must be
    [outputs.probability]                  # by name where the program returns a dictionary, else in its order
    reduce = "softmax"                     # over the classes, on the device; or "argmax" (class ids), or "none"

Of tables (`rows = true` above the inputs) the first axis of a prompt's arrays is the program's batch:
`shape = ["rows", "columns=4"]`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, assert_never
from zipfile import is_zipfile

import numpy as np
import torch
from pydantic import Field, ValidationError
from torch import Tensor, nn

from penstock.errors import ModelUnavailable, ProcessorFailed
from penstock.models import Model, Record
from penstock.processors.base import Array, Output, Prompt
from penstock.processors.tensors.description import Inputs, Layout
from penstock.workers.engine.base import Done, shapes_of
from penstock.workers.engine.sources import sha256_of, verify
from penstock.workers.engine.torch_device import Sent, TorchDevice, arrays_of, class_ids, weights_bytes

DESCRIPTION, PROGRAM = "penstock.toml", "program.pt2"


class OutputSpec(Record):
    """An array that the program makes."""

    reduce: Literal["none", "softmax", "argmax"] = "none"


class Description(Inputs):
    """What `penstock.toml` says."""

    network: str | None = None
    outputs: Mapping[str, OutputSpec] = Field(default_factory=dict)
    rows: bool = False

    def check(self, data: Mapping[str, Any]) -> None:
        """Raise what says what is expected unless every input is there and fits.

        `ProcessorFailed` for a name, a type or a rank, which no job's data bring about; `InvalidInput` for sizes.
        """
        self.fit({name: _layout(data.get(name)) for name in self.inputs}, fault=ProcessorFailed)


@dataclass(frozen=True, slots=True)
class ProgramRunner:
    """Runs an exported program: prompts and outputs have the arrays that `penstock.toml` names.

    On a CPU prompts run one by one, for the same bits (see `torch_runner`).
    """

    description: Description
    module: nn.Module
    device: TorchDevice
    max_batch: int
    memory_bytes: int

    def bucket(self, prompt: Prompt) -> Hashable:
        """Prompts of the same shapes share a batch."""
        return shapes_of(prompt)

    def admit(self, prompt: Prompt) -> tuple[Sent, ...]:
        """Return the inputs on their way to the device."""
        self.description.check(prompt.data)
        return tuple(self.device.send(prompt.data[name]) for name in self.description.inputs)

    def step(self, states: Sequence[tuple[Sent, ...]]) -> Sequence[Done]:
        """Run the program once."""
        rows = self.description.rows
        with self.device.running():
            inputs = [self.device.stack(sent) for sent in zip(*states, strict=True)]
            answer = self.module(*(batch[0] if rows else batch for batch in inputs))
            outputs = {
                name: arrays_of(_whole(_reduced(tensor, self.description.outputs[name].reduce), rows=rows))
                for name, tensor in _named(answer, tuple(self.description.outputs)).items()
            }
        return [Done(Output({n: arrays[i] for n, arrays in outputs.items()})) for i in range(len(states))]

    def close(self) -> None:
        """Free the device's memory."""
        self.device.free(self.module)


class Program(nn.Module):
    """An exported program as a module that may be told to evaluate: it does nothing else, and refuses to be told."""

    def __init__(self, program: Any) -> None:
        super().__init__()
        self.program = program

    def forward(self, *inputs: Tensor) -> Any:
        """Run it."""
        return self.program(*inputs)

    def train(self, mode: bool = True) -> Program:  # noqa: ARG002
        """Stay as exported."""
        return self


def read_description(model: Model) -> Description:
    """Read the directory's `penstock.toml` and check its files; raise `ModelUnavailable`."""
    verify(model)
    path = Path(model.source) / DESCRIPTION
    try:
        return Description.model_validate(tomllib.loads(path.read_text()))
    except OSError as error:
        raise ModelUnavailable(f"model {model.name!r} lacks the file {DESCRIPTION}: {error.strerror}") from error
    except (ValueError, ValidationError) as error:
        raise ModelUnavailable(f"the file {DESCRIPTION} of model {model.name!r} is not right: {error}") from error


def check_program(model: Model, description: Description) -> Path:
    """Return the directory's exported program. Reading one can run code, so its hash must stand in the catalogue."""
    path = Path(model.source) / PROGRAM
    if not path.is_file():
        raise ModelUnavailable(f"model {model.name!r} names no `network` in {DESCRIPTION} and lacks the file {PROGRAM}")
    if not description.inputs or not description.outputs:
        raise ModelUnavailable(f"the file {DESCRIPTION} of model {model.name!r} names no inputs or no outputs")
    if PROGRAM not in model.files:
        raise ModelUnavailable(
            f"reading {PROGRAM} can run code: if you trust it, give model {model.name!r} "
            f'files = {{ "{PROGRAM}" = "{sha256_of(path)}" }}'
        )
    if not is_zipfile(path):
        raise ModelUnavailable(f"the file {PROGRAM} of model {model.name!r} is not an exported program")
    return path


def load_program(model: Model, description: Description) -> ProgramRunner:
    """Load the directory's exported program; raise `ModelUnavailable`."""
    path = check_program(model, description)
    device = TorchDevice.of(model)
    exported, largest = _read(model, path, len(description.inputs), rows=description.rows)
    if not device.is_cpu:
        from torch.export.passes import move_to_device_pass

        exported = move_to_device_pass(exported, device.device)
    module = device.place(Program(exported.module()))
    size = weights_bytes(module)
    return ProgramRunner(description, module, device, 1 if device.is_cpu else min(model.max_batch, largest), size)


def _read(model: Model, path: Path, inputs: int, *, rows: bool) -> tuple[Any, int]:
    """Return an exported program and the largest batch that it takes."""
    try:
        exported = torch.export.load(path)
    except Exception as error:  # whatever a damaged archive makes of itself
        raise ModelUnavailable(
            f"the file {PROGRAM} of model {model.name!r} cannot be read ({type(error).__name__})"
        ) from error
    shapes = [
        node.meta["val"].shape for node in exported.graph.nodes if node.name in exported.graph_signature.user_inputs
    ]
    if len(shapes) != inputs:
        raise ModelUnavailable(
            f"the file {PROGRAM} of model {model.name!r} takes {len(shapes)} inputs, {DESCRIPTION} names {inputs}"
        )
    fixed = [shape[0] for shape in shapes if shape and isinstance(shape[0], int)]
    if any(size != 1 or rows for size in fixed):
        raise ModelUnavailable(
            f"the file {PROGRAM} of model {model.name!r} was exported for batches of exactly {max(fixed)}: "
            "export it with a dynamic first axis"
        )
    return exported, 1 if fixed or rows else model.max_batch


def _named(answer: Any, names: tuple[str, ...]) -> dict[str, Tensor]:
    """Return a program's answer by the outputs' names; what has no name is left out."""
    if isinstance(answer, Mapping):
        return {name: answer[name] for name in names}
    parts = (answer,) if isinstance(answer, Tensor) else tuple(answer)
    return dict(zip(names, parts[: len(names)], strict=True))


def _whole(tensor: Tensor, *, rows: bool) -> Tensor:
    """Return a batch of samples: the rows of a table are one."""
    return tensor[None] if rows else tensor


def _reduced(tensor: Tensor, reduce: Literal["none", "softmax", "argmax"]) -> Tensor:
    match reduce:
        case "none":
            return tensor
        case "softmax":
            return torch.softmax(tensor.float(), dim=1)
        case "argmax":
            return class_ids(tensor)
        case _:
            assert_never(reduce)


def _layout(array: Array) -> Layout | str:
    return (str(array.dtype), array.shape) if isinstance(array, np.ndarray) else type(array).__name__
