"""The table `onnx` in a model's options: maps the names and axes of prompts to those of the ONNX file.

    [models.NAME.options.onnx]
    file = "model.onnx"                                           # if the source is a directory
    inputs.pixels = { name = "input_1", layout = "NHWC" }         # prompts have channels first, the file last
    outputs.probability = { name = "conv2d_19", layout = "NHWC" }
    outputs.classes = { name = "logits", reduce = "argmax", resize = true }
    outputs.boxes = { name = "boxes", batch = false }              # it has no batch axis
    rows = true                                                   # tables: the first axis of a prompt is the batch
    any_size = true                                               # images of other sizes than the file declares
    threads = 4                                                   # of one forward pass; default: every core

A name that is the same on both sides may be left out; without `outputs` all outputs are returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from penstock.errors import ModelUnavailable
from penstock.json_body import wrong_fields
from penstock.models import Model, Record

#: The order of an image's axes in the file.
Layout = Literal["NCHW", "NHWC"]


class InputSpec(Record):
    """The input of the file for a prompt's array."""

    name: str | None = None
    layout: Layout = "NCHW"


class OnnxOutput(Record):
    """The reduction of an output of the file."""

    name: str | None = None
    layout: Layout = "NCHW"
    #: False: the output has no batch axis, as the boxes of torchvision's detectors. Then one prompt is taken at a time.
    batch: bool = True
    #: Resize bilinearly before the reduction: to the prompt's `size` ([height, width]), or to the size of its `pixels`.
    resize: bool = False
    #: Reduction over the channels: probabilities, or the id of the best channel.
    reduce: Literal["none", "softmax", "argmax"] = "none"


class OnnxDescription(Record):
    """The content of the table."""

    file: str = "model.onnx"
    inputs: Mapping[str, InputSpec] = Field(default_factory=dict)
    outputs: Mapping[str, OnnxOutput] = Field(default_factory=dict)
    rows: bool = False
    #: Ignore the height and width that the file declares: a network of convolutions computes images of any size, and
    #: some exporters write down that of their example.
    any_size: bool = False
    threads: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _of_tables_or_images(self) -> Self:
        layouts = [spec.layout for spec in self.inputs.values()] + [spec.layout for spec in self.outputs.values()]
        sized = self.any_size or any(spec.resize for spec in self.outputs.values())
        if self.rows and ("NHWC" in layouts or sized):
            raise ValueError("rows are no images: they have no layout and no size")
        return self

    @model_validator(mode="after")
    def _inside(self) -> Self:
        if PurePosixPath(self.file).is_absolute() or ".." in PurePosixPath(self.file).parts:
            raise ValueError("file leads out of the model's directory")
        return self


def read_description(model: Model) -> OnnxDescription:
    """Read the table; raise `ModelUnavailable` naming each wrong field."""
    try:
        return OnnxDescription.model_validate(model.options.get("onnx", {}))
    except ValidationError as error:
        wrong = wrong_fields(error, under=("onnx",))
        raise ModelUnavailable(f"model {model.name!r}: wrong options: {wrong}") from error


def sizes_freed(graph: Any, description: OnnxDescription) -> Any:
    """Return the graph after removing the heights and widths that it declares, if the description says so."""
    if not description.any_size:
        return graph
    last = {spec.name or name for name, spec in description.inputs.items() if spec.layout == "NHWC"}
    last |= {spec.name or name for name, spec in description.outputs.items() if spec.layout == "NHWC"}
    for node in (*graph.input, *graph.output):
        sides = node.type.tensor_type.shape.dim
        if len(sides) == 4:
            for axis in (1, 2) if node.name in last else (2, 3):
                sides[axis].Clear()
    del graph.value_info[:]
    return graph
