"""Raw tensors: sends a file's tensors to the network and returns the network's outputs, with checks only."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, ValidationError

from penstock.errors import ConfigError, InvalidInput, ProcessorFailed
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result, only_output
from penstock.processors.io_signature import IOSignature
from penstock.processors.outputs import OUTPUTS, write_safetensors
from penstock.processors.tensors.description import Inputs, Layout
from penstock.processors.tensors.reading import Arrays, open_tensors, refuse_nan
from penstock.processors.tensors.request import TensorRequest
from penstock.views import View

#: File in the folder of an exported program that describes its inputs.
DESCRIPTION = "penstock.toml"
#: Maximum count of numbers in a result's JSON.
_MAX_VALUES = 100_000
_OPTIONS = ("inputs", "multiples", "nan", "dummy")


class TensorOptions(Inputs):
    """A model's options for tensors."""

    #: Handling of inputs with NaN or infinities.
    nan: Literal["refuse", "allow"] = "refuse"
    #: Sizes of variable sides in the warm-up.
    dummy: Mapping[str, int] = Field(default_factory=dict)


class Tensors:
    """The tensor processor. `options.inputs` or the model's `penstock.toml` declares the network's inputs."""

    request = TensorRequest
    outputs = (
        OUTPUTS.spec("safetensors", "tensors.safetensors: the network's outputs by name", kind="safetensors"),
        OUTPUTS.spec("npy", "each of the network's outputs as NAME.npy", kind="npy", default=False),
        OUTPUTS.spec("json", "the result: the outputs' numbers as `values`", kind="json", default=False),
    )

    #: The names are those of a model's inputs.
    views = (View("rows", "/tensors/*/values"), View("rows", "/tensors/*"))
    io_signatures = (IOSignature(prompt={"*": "array"}, output={"*": "array"}),)

    def __init__(self, model: Model) -> None:
        self._model = model
        self._options = read_options(model)
        self.io_signatures = (IOSignature(prompt=self._options.kinds, output={"*": "array"}),)

    def pre_process(self, request: TensorRequest, media: Media) -> Prepared[TensorRequest]:
        """Return one prompt that fits the declared inputs."""
        arrays = self._read(media.path(request.file))
        cost = sum(array.size for array in arrays.values())
        return Prepared(iter([Prompt(arrays, cost)]), 1, cost, request)

    def post_process(self, outputs: Iterator[Output], context: TensorRequest, sink: ArtifactSink) -> Result:
        """Return `{"tensors": {NAME: {"dtype", "shape"}}}`, with `values` if the request wants JSON."""
        arrays = {name: np.asarray(value) for name, value in only_output(outputs).data.items()}
        if "json" in context.outputs and sum(array.size for array in arrays.values()) > _MAX_VALUES:
            raise InvalidInput(
                f"The outputs have more than {_MAX_VALUES} numbers: request safetensors or npy, not json."
            )
        if "safetensors" in context.outputs:
            OUTPUTS.put(sink, "tensors", arrays, kind="safetensors")
        if "npy" in context.outputs:
            for name, array in arrays.items():
                OUTPUTS.put(sink, name, array, kind="npy")
        return Result(data={"tensors": {name: _entry(array, context.outputs) for name, array in arrays.items()}})

    def dummy(self, limits: Limits, folder: Path) -> Dummy:  # noqa: ARG002  (a network's inputs have their own sizes)
        """Return tensors of zeros."""
        path = folder / "dummy.safetensors"
        layouts = self._options.example(self._options.dummy)
        write_safetensors(path, {name: np.zeros(shape, dtype) for name, (dtype, shape) in layouts.items()})
        return Dummy({"file": "media://dummy"}, {"media://dummy": path})

    def _read(self, path: Path) -> Arrays:
        file = open_tensors(path)
        names = self._names(file.layouts)
        self._options.fit({names[name]: layout for name, layout in file.layouts.items()}, fault=InvalidInput)
        arrays = {names[name]: array for name, array in file.load().items()}
        if self._options.nan == "refuse":
            for name, array in arrays.items():
                refuse_nan(name, array)
        return arrays

    def _names(self, layouts: Mapping[str, Layout]) -> Mapping[str, str]:
        """Map the file's tensors to the declared inputs; raise `InvalidInput` if their names differ."""
        wanted = list(self._options.inputs)
        if list(layouts) == [""] and len(wanted) == 1:
            return {"": wanted[0]}
        if list(layouts) == [""]:
            raise InvalidInput(f"The network takes {', '.join(wanted)}: give them by name in a .safetensors file.")
        if set(layouts) != set(wanted):
            found = ", ".join(sorted(layouts)[:20]) or "none"
            raise InvalidInput(f"The network takes the tensors {', '.join(wanted)}; the file has: {found}.")
        return {name: name for name in layouts}


def read_options(model: Model) -> TensorOptions:
    """Return a model's options, with the inputs from its `penstock.toml` if they have none; raise `ConfigError`."""
    found = {name: model.options[name] for name in _OPTIONS if name in model.options}
    if "inputs" not in found:
        found = {**_description(Path(model.source) / DESCRIPTION), **found}
    try:
        options = TensorOptions.model_validate(found)
    except ValidationError as error:
        raise ConfigError(f"model {model.name!r}: its inputs are invalid: {error}") from error
    if not options.inputs:
        raise ConfigError(
            f"model {model.name!r} declares no inputs: declare them in options.inputs or in {DESCRIPTION}"
        )
    return options


def _description(path: Path) -> dict[str, Any]:
    try:
        described = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{DESCRIPTION} cannot be read: {error}") from error
    return {name: described[name] for name in ("inputs", "multiples") if name in described}


def _entry(array: np.ndarray[Any, Any], wanted: tuple[str, ...]) -> dict[str, Any]:
    if array.dtype.kind not in "biuf":
        raise ProcessorFailed(f"The network answered {array.dtype}; expected a tensor of numbers.")
    entry = {"dtype": array.dtype.name, "shape": list(array.shape)}
    return entry | {"values": _values(array)} if "json" in wanted else entry


def _values(array: np.ndarray[Any, Any]) -> Any:
    """Return nested lists of the shortest decimals that convert back to the same array; null for NaN and infinity."""
    if array.dtype.kind != "f":
        return array.tolist()
    plain = np.empty(array.size, object)
    plain[:] = [float(str(number)) if np.isfinite(number) else None for number in array.reshape(-1)]
    return plain.reshape(array.shape).tolist()
