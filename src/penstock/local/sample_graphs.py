"""Networks of sample models in ONNX files, with random weights: each function writes `model.onnx` into a folder."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

#: Shape of an array of a graph: a size, or a name for any size.
Sides = tuple[int | str, ...]
#: Versions that every supported onnxruntime computes.
_OPSET, _IR = 17, 10


def table(folder: Path) -> None:
    """Write a sum of two weighted columns: `features` (rows, 2) to `variable` (rows, 1)."""
    _graph(folder, "Gemm", ("features", ("rows", 2)), ("variable", ("rows", 1)), {"w": (2, 1), "b": (1,)})


def rows(folder: Path) -> None:
    """Write a score of rows of 64 numbers: `rows` (batch, any, 64) to `score` (batch, any, 1)."""
    _graph(folder, "MatMul", ("rows", ("batch", "n", 64)), ("score", ("batch", "n", 1)), {"w": (64, 1)})


def scene(folder: Path) -> None:
    """Write a weighted sum of six bands over 3 x 3 pixels: `pixels` (batch, 6, h, w) to `values` (batch, 1, h, w)."""
    taken, given = ("pixels", ("batch", 6, "h", "w")), ("values", ("batch", 1, "h", "w"))
    _graph(folder, "Conv", taken, given, {"w": (1, 6, 3, 3), "b": (1,)}, pads=[1, 1, 1, 1])


def _graph(
    folder: Path,
    operator: str,
    taken: tuple[str, Sides],
    given: tuple[str, Sides],
    weights: Mapping[str, Sides],
    **attributes: Any,
) -> None:
    """Write a graph of one operator with random float32 weights."""
    onnx, numpy = import_module("onnx"), import_module("numpy")
    random, made = numpy.random.default_rng(1), onnx.helper
    arrays = {name: random.normal(size=shape).astype("float32") for name, shape in weights.items()}
    graph = made.make_graph(
        [made.make_node(operator, [taken[0], *arrays], [given[0]], **attributes)], folder.name,
        [made.make_tensor_value_info(taken[0], onnx.TensorProto.FLOAT, taken[1])],
        [made.make_tensor_value_info(given[0], onnx.TensorProto.FLOAT, given[1])],
        initializer=[onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )  # fmt: skip
    versions = [made.make_opsetid("", _OPSET)]
    onnx.save(made.make_model(graph, opset_imports=versions, ir_version=_IR), str(folder / "model.onnx"))
