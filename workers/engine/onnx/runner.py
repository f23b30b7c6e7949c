"""The runner `onnx`: one forward pass of a network in an ONNX file per batch.

Prompts and outputs have the arrays that the file names, without their first axis, which must be the batch. A dynamic
batch axis takes `max_batch` prompts at a time, a batch axis of 1 takes one prompt. For tables (`rows`) the first axis
belongs to the prompt. Files in float16 take and return float32.

On a CPU a prompt gives the same bits every time. Other prompts of its batch may change the last bits in some networks
(those with products of matrices, not convolutions); `max_batch = 1` avoids this.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, assert_never

import numpy as np
import numpy.typing as npt
import onnx

from penstock.errors import InvalidInput, ModelUnavailable, ProcessorFailed
from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Done, Runner, shapes_of
from penstock.workers.engine.onnx.description import (
    InputSpec,
    Layout,
    OnnxDescription,
    OnnxOutput,
    read_description,
    sizes_freed,
)
from penstock.workers.engine.onnx.graph import check_graph, find_file
from penstock.workers.engine.onnx.session import onnx_errors, open_session

Array = npt.NDArray[Any]

_DTYPES = {
    "float": "float32", "double": "float64", "float16": "float16", "bool": "bool",
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
#: A prompt's [height, width] of the answer, and the array whose size is the default.
_SIZE, _PIXELS = "size", "pixels"
_WANTED = "arrays of numbers whose first axis is the batch are taken"


@dataclass(frozen=True, slots=True)
class Port:
    """An input of the file in the prompts' order of axes: a side is a number, or a name for any number."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]
    layout: Layout

    def __str__(self) -> str:
        return f"{self.prompt_dtype} ({', '.join('any' if s is None else str(s) for s in self.shape)})"

    @property
    def prompt_dtype(self) -> str:
        """The dtype of prompts: float32 for an input in float16."""
        return "float32" if self.dtype == "float16" else self.dtype


@dataclass(frozen=True, slots=True)
class OnnxState:
    """A prompt's arrays by the file's names and in its order of axes, and the size of the answer."""

    arrays: Mapping[str, Array]
    size: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class OnnxRunner:
    """The runner of a network in an ONNX file."""

    session: Any
    description: OnnxDescription
    #: Inputs of the file, by the prompts' names.
    inputs: Mapping[str, Port]
    #: Outputs by their names in `Output.data`; each holds its name in the file.
    outputs: Mapping[str, OnnxOutput]
    max_batch: int
    memory_bytes: int

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return the prompt's shapes: prompts of the same shapes share a batch."""
        return shapes_of(prompt)

    def admit(self, prompt: Prompt) -> OnnxState:
        """Return the prompt's arrays in the file's order of axes."""
        self._check(prompt.data)
        arrays = {port.name: _arranged(prompt.data[name], port) for name, port in self.inputs.items()}
        return OnnxState(arrays, self._size(prompt.data))

    def step(self, states: Sequence[OnnxState]) -> Sequence[Done]:
        """Run the network once."""
        names = [str(spec.name) for spec in self.outputs.values()]
        with onnx_errors():
            feeds = {port.name: self._batch([state.arrays[port.name] for state in states]) for port in self._ports}
            answers = self.session.run(names, feeds)
        for name, answer in zip(names, answers, strict=True):
            if not isinstance(answer, np.ndarray) or answer.ndim == 0:
                raise ProcessorFailed(f"the network's output {name!r} is no array with a batch axis")
        return [Done(self._output(answers, index, state)) for index, state in enumerate(states)]

    def close(self) -> None:
        """Free nothing: the session is freed with the runner."""

    @property
    def _ports(self) -> Sequence[Port]:
        return tuple(self.inputs.values())

    def _batch(self, arrays: Sequence[Array]) -> Array:
        return arrays[0] if self.description.rows else np.stack(arrays)

    def _output(self, answers: Sequence[Array], index: int, state: OnnxState) -> Output:
        made = {}
        for (name, spec), answer in zip(self.outputs.items(), answers, strict=True):
            if self.description.rows:
                made[name] = _own(reduced(answer.T, spec.reduce).T if spec.reduce != "none" else answer)
                continue
            if spec.batch and index >= len(answer):
                raise ProcessorFailed(
                    f"the network's output {spec.name!r} has no sample for each prompt: {answer.shape}"
                )
            made[name] = _finished(answer[index] if spec.batch else answer, spec, state.size)
        return Output(made)

    def _check(self, data: Mapping[str, Any]) -> None:
        """Raise `ProcessorFailed` for a wrong name, type or rank, `InvalidInput` for wrong sizes."""
        sides: dict[str, int] = {}
        for name, port in self.inputs.items():
            array = data.get(name)
            if not isinstance(array, np.ndarray) or array.dtype != port.prompt_dtype or array.ndim != len(port.shape):
                raise ProcessorFailed(f"the network takes `{name}`, {port}, not {_described(array)}")
            for side, size in zip(port.shape, array.shape, strict=True):
                wanted = sides.setdefault(side, size) if isinstance(side, str) else side
                if not size or wanted not in (None, size):
                    raise InvalidInput(f"the network takes `{name}`, {port}, not {array.shape}")

    def _size(self, data: Mapping[str, Any]) -> tuple[int, int] | None:
        if not any(spec.resize for spec in self.outputs.values()):
            return None
        match data.get(_SIZE), data.get(_PIXELS):
            case [int(height), int(width)], _:
                return height, width
            case None, np.ndarray(shape=(*_, height, width)):
                return int(height), int(width)
        raise ProcessorFailed(f"the prompt has neither `{_SIZE}` nor `{_PIXELS}`, which the answer is resized to")


def load_onnx(model: Model) -> Runner:
    """Load a network from its ONNX file; raise `ModelUnavailable`."""
    description = read_description(model)
    path = find_file(model, description.file)
    size_bytes, outside = check_graph(model, path)
    content = _freed(model, description, path, outside=outside) if description.any_size else None
    session = open_session(model, path, threads=description.threads, content=content)
    inputs, dynamic = _inputs(model, description, session.get_inputs())
    outputs = _outputs(model, description, session.get_outputs())
    together = all(spec.batch for spec in outputs.values()) and not description.rows
    largest = model.max_batch if dynamic and together else 1
    return OnnxRunner(session, description, inputs, outputs, largest, size_bytes)


def check_onnx(model: Model) -> None:
    """Check the file that `load_onnx` would load, without making a session; raise `ModelUnavailable`."""
    check_graph(model, find_file(model, read_description(model).file))


def _freed(model: Model, description: OnnxDescription, path: Path, *, outside: bool) -> bytes:
    """Return a file's content without its declared sizes; raise `ModelUnavailable` if its weights lie elsewhere."""
    if outside:
        raise ModelUnavailable(f"model {model.name!r}: any_size needs all weights in {path.name}, without other files")
    made = onnx.load(path)
    sizes_freed(made.graph, description)
    return bytes(made.SerializeToString())


def _inputs(model: Model, description: OnnxDescription, nodes: Sequence[Any]) -> tuple[dict[str, Port], bool]:
    """Return the file's inputs by the prompts' names, and True if their batch axis is dynamic."""
    by_file = {spec.name or name: (name, spec) for name, spec in description.inputs.items()}
    _refuse_unknown(model, "input", by_file, nodes)
    ports: dict[str, Port] = {}
    batches: set[Any] = set()
    for node in nodes:
        name, spec = by_file.get(node.name, (node.name, InputSpec()))
        dtype = _dtype(node.type)
        if dtype is None or not node.shape:
            raise ModelUnavailable(
                f"model {model.name!r}: the input {node.name!r} is {node.type} {node.shape}: {_WANTED}"
            )
        batches.add(node.shape[0] if isinstance(node.shape[0], int) else None)
        ports[name] = Port(node.name, dtype, _sides(model, node, spec, rows=description.rows), spec.layout)
    fixed = batches - {None}
    if not ports or (fixed and description.rows) or fixed - {1}:
        raise ModelUnavailable(
            f"model {model.name!r}: its file takes batches of exactly {max(fixed, default=0)}: "
            "export it with a dynamic first axis"
        )
    return ports, not fixed


def _sides(model: Model, node: Any, spec: InputSpec, *, rows: bool) -> tuple[int | str | None, ...]:
    """Return the shape of an input in the prompts' order of axes."""
    sides = [side if isinstance(side, int | str) else None for side in node.shape]
    if rows:
        return (None, *sides[1:])
    if spec.layout == "NHWC":
        if len(sides) != 4:
            raise ModelUnavailable(f"model {model.name!r}: the input {node.name!r} is no NHWC image: {node.shape}")
        return sides[3], sides[1], sides[2]
    return tuple(sides[1:])


def _outputs(model: Model, description: OnnxDescription, nodes: Sequence[Any]) -> dict[str, OnnxOutput]:
    """Return the wanted outputs by their names, each with its name in the file."""
    if not description.outputs:
        return {node.name: OnnxOutput(name=node.name) for node in nodes if _dtype(node.type) is not None}
    wanted = {name: spec.model_copy(update={"name": spec.name or name}) for name, spec in description.outputs.items()}
    _refuse_unknown(model, "output", {str(spec.name): spec for spec in wanted.values()}, nodes)
    types = {node.name: node.type for node in nodes}
    for spec in wanted.values():
        if _dtype(types[spec.name]) is None:
            raise ModelUnavailable(
                f"model {model.name!r}: the output {spec.name!r} is {types[spec.name]}, not an array of numbers: "
                "export it without (in skl2onnx: zipmap = False)"
            )
    return wanted


def _refuse_unknown(model: Model, kind: str, named: Mapping[str, Any], nodes: Sequence[Any]) -> None:
    known = [node.name for node in nodes]
    if unknown := sorted(set(named) - set(known)):
        raise ModelUnavailable(
            f"model {model.name!r}: its file has no {kind} {unknown[0]!r}; known {kind}s: {', '.join(known)}"
        )


def _dtype(kind: str) -> str | None:
    """Return numpy's name of a dtype such as `tensor(float)`; None for text, sequences and maps."""
    return _DTYPES.get(kind.removeprefix("tensor(").removesuffix(")")) if kind.startswith("tensor(") else None


def _arranged(array: Array, port: Port) -> Array:
    array = array.transpose(1, 2, 0) if port.layout == "NHWC" else array
    return np.ascontiguousarray(array, dtype=port.dtype)


def _finished(sample: Array, spec: OnnxOutput, size: tuple[int, int] | None) -> Array:
    if spec.layout == "NHWC":
        sample = sample.transpose(2, 0, 1)
    if spec.resize and size is not None:
        sample = resized(sample, *size)
    return _own(reduced(sample, spec.reduce))


def _own(array: Array) -> Array:
    """Return an array with memory of its own: an output must not keep its whole batch in memory."""
    if array.dtype == np.float16:
        array = array.astype(np.float32)
    return array if array.base is None and array.flags.c_contiguous else np.array(array, order="C")


def _described(array: Any) -> str:
    return f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__


def resized(channels: Array, height: int, width: int) -> Array:
    """Resize (channels, h, w) bilinearly to float32 (channels, height, width).

    Equals `torch.nn.functional.interpolate` with `align_corners=False`: pixels have centres, and edges are repeated.
    """
    rows, columns = _weights(channels.shape[1], height), _weights(channels.shape[2], width)
    return np.asarray(rows @ channels.astype(np.float32) @ columns.T, dtype=np.float32)


def reduced(channels: Array, reduce: Literal["none", "softmax", "argmax"]) -> Array:
    """Return (channels, ...) unchanged, as float32 probabilities, or as ids: uint8, or uint16 above 256 channels."""
    match reduce:
        case "none":
            return channels
        case "softmax":
            raised = np.exp(channels.astype(np.float32) - channels.max(axis=0))
            return np.asarray(raised / raised.sum(axis=0), dtype=np.float32)
        case "argmax":
            return np.asarray(channels.argmax(axis=0), np.uint8 if len(channels) <= 256 else np.uint16)
        case _:
            assert_never(reduce)


def _weights(before: int, after: int) -> npt.NDArray[np.float32]:
    """Return the matrix (after, before) that resizes one axis."""
    at = np.clip((np.arange(after) + 0.5) * before / after - 0.5, 0, before - 1)
    low = np.floor(at).astype(int)
    high = np.minimum(low + 1, before - 1)
    weights = np.zeros((after, before), np.float32)
    np.add.at(weights, (np.arange(after), low), 1 - (at - low))
    np.add.at(weights, (np.arange(after), high), at - low)
    return weights
