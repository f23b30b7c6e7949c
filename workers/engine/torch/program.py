"""An exported program for the runner `torch`: `program.pt2`, described by `penstock.toml` (see `description`)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, assert_never
from zipfile import is_zipfile

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from penstock.errors import ModelUnavailable, ProcessorFailed
from penstock.models import Model
from penstock.processors.base import Array, Output, Prompt
from penstock.processors.reductions import Reduction
from penstock.processors.tensors.description import Layout
from penstock.workers.engine.base import Done, dtype_of, shapes_of
from penstock.workers.engine.sources import sha256_of, verify
from penstock.workers.engine.torch.description import DESCRIPTION, TorchDescription, describe
from penstock.workers.engine.torch.device import Input, TorchDevice, arrays_of, class_ids, weights_bytes
from penstock.workers.engine.torch.scores import SCORES, answers_of, reduction_of

PROGRAM = "program.pt2"


@dataclass(frozen=True, slots=True)
class ProgramState:
    """A prompt's inputs on their way to the device, in the program's order, and the reduction of its scores."""

    inputs: tuple[Input, ...]
    reduction: Reduction | None


@dataclass(frozen=True, slots=True)
class ProgramRunner:
    """An exported program: prompts and outputs have the arrays that `penstock.toml` names.

    On a CPU prompts run one by one, for the same bits (see `torch.runner`). `pixels` may be a file's own numbers, and
    scores that are a softmax are reduced as their prompts ask.
    """

    takes_numbers = True
    description: TorchDescription
    module: nn.Module
    device: TorchDevice
    max_batch: int
    memory_bytes: int

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return the prompt's shapes: prompts of the same shapes share a batch."""
        return shapes_of(prompt)

    def admit(self, prompt: Prompt) -> ProgramState:
        """Return the inputs on their way to the device."""
        _check(self.description, prompt)
        inputs = tuple(self.device.send_input(prompt.data, name) for name in self.description.inputs)
        return ProgramState(inputs, reduction_of(prompt))

    def step(self, states: Sequence[ProgramState]) -> Sequence[Done]:
        """Run the program once, on a CPU once for each prompt."""
        return self.device.answers(self._step, states)

    def _step(self, states: Sequence[ProgramState]) -> Sequence[Done]:
        rows = self.description.rows
        with self.device.running():
            inputs = [self.device.stack(sent) for sent in zip(*(state.inputs for state in states), strict=True)]
            answer = self.module(*(batch[0] if rows else batch for batch in inputs))
            found: list[dict[str, Array]] = [{} for _ in states]
            for name, tensor in _named(answer, tuple(self.description.outputs)).items():
                for one, values in zip(found, self._values(name, tensor, states), strict=True):
                    one.update(values)
        return [Done(Output(values)) for values in found]

    def close(self) -> None:
        """Free the device's memory."""
        self.device.free(self.module)

    def _values(self, name: str, tensor: Tensor, states: Sequence[ProgramState]) -> Sequence[Mapping[str, Array]]:
        """Return an output of each prompt under its name, or its reduction."""
        reduce = self.description.outputs[name].reduce
        whole = _whole(_reduced(tensor, reduce), rows=self.description.rows)
        if name == SCORES and reduce == "softmax" and whole.ndim == 4:
            return answers_of(whole, [state.reduction for state in states])
        return [{name: array} for array in arrays_of(whole)]


class Program(nn.Module):
    """An exported program as a module whose `eval` does nothing: exported programs reject the call."""

    def __init__(self, program: Any) -> None:
        super().__init__()
        self.program = program

    def forward(self, *inputs: Tensor) -> Any:
        """Run the program."""
        return self.program(*inputs)

    def train(self, mode: bool = True) -> Program:  # noqa: ARG002
        """Stay as exported."""
        return self


def read_description(model: Model) -> TorchDescription:
    """Read the directory's `penstock.toml` and check its files; raise `ModelUnavailable`."""
    verify(model)
    try:
        return describe(Path(model.source))
    except OSError as error:
        raise ModelUnavailable(f"model {model.name!r} lacks the file {DESCRIPTION}: {error.strerror}") from error
    except (ValueError, ValidationError) as error:
        raise ModelUnavailable(f"the file {DESCRIPTION} of model {model.name!r} is not valid: {error}") from error


def check_program(model: Model, description: TorchDescription) -> Path:
    """Return the directory's exported program, whose hash must be in the catalogue: reading a program can run code."""
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


def load_program(model: Model, description: TorchDescription) -> ProgramRunner:
    """Load the directory's exported program; raise `ModelUnavailable`."""
    path = check_program(model, description)
    device = TorchDevice.of(model)
    exported, largest = _read(model, path, len(description.inputs), rows=description.rows)
    if not device.is_cpu:
        from torch.export.passes import move_to_device_pass

        exported = move_to_device_pass(exported, device.device)
    module = device.place(Program(exported.module()))
    size = weights_bytes(module)
    return ProgramRunner(description, module, device, device.batch(min(model.max_batch, largest)), size)


def _read(model: Model, path: Path, inputs: int, *, rows: bool) -> tuple[Any, int]:
    """Return an exported program and its largest batch."""
    try:
        exported = torch.export.load(path)
    except Exception as error:  # a damaged archive raises errors of any type
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
    """Return a program's answer by the outputs' names, without parts that have no name."""
    if isinstance(answer, Mapping):
        return {name: answer[name] for name in names}
    parts = (answer,) if isinstance(answer, Tensor) else tuple(answer)
    return dict(zip(names, parts[: len(names)], strict=True))


def _whole(tensor: Tensor, *, rows: bool) -> Tensor:
    """Return a batch of samples: the rows of a table are one sample."""
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


def _check(description: TorchDescription, prompt: Prompt) -> None:
    """Raise an error with the expected inputs unless every input is there and fits.

    `ProcessorFailed` for a name, a type or a rank, which no job's data can change; `InvalidInput` for sizes.
    """
    description.fit({name: _layout(prompt, name) for name in description.inputs}, fault=ProcessorFailed)


def _layout(prompt: Prompt, name: str) -> Layout | str:
    array: Array = prompt.data.get(name)
    return (dtype_of(prompt, name), array.shape) if isinstance(array, np.ndarray) else type(array).__name__
