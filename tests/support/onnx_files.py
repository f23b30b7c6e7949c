"""ONNX files for tests: small networks whose answers are known, and files that must be refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from penstock.models import Model
from penstock.workers.engine.base import Runner
from penstock.workers.engine.runners import Runners

Side = int | str | None


def a_model(source: Path | str, **fields: Any) -> Model:
    common = {"title": "M", "processor": "none", "revision": "1", "device": "cpu", "max_batch": 4}
    return Model(**{"name": "net", "runner": "onnx", "source": str(source), **common, **fields})


def load(source: Path | str, **fields: Any) -> Runner:
    return Runners.installed().load(a_model(source, **fields))


def value(name: str, shape: Sequence[Side], kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, list(shape))


def save(
    path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: dict[str, Any], *, opset: int = 17
) -> Path:
    """Save a graph; return its path."""
    made = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "net", inputs, outputs, initializer=made)
    domains = sorted({node.domain for node in nodes} - {""})
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def conv(
    path: Path, *, bands: int = 6, classes: int = 5, batch: Side = "n", sides: tuple[Side, Side] = ("h", "w"),
    softmax: bool = False, names: tuple[str, str] = ("pixels", "logits"), stride: int = 1,
) -> Path:  # fmt: skip
    """Save a convolution of 3 x 3 px from bands to classes, channels first."""
    rng = np.random.default_rng(1)
    weight = rng.normal(size=(classes, bands, 3, 3)).astype(np.float32)
    nodes = [helper.make_node("Conv", [names[0], "w"], ["y"], pads=[1, 1, 1, 1], strides=[stride, stride])]
    nodes.append(helper.make_node("Softmax" if softmax else "Identity", ["y"], [names[1]], **_axis(softmax)))
    small = tuple(side // stride if isinstance(side, int) else f"{side}/{stride}" for side in sides)
    inputs, outputs = [value(names[0], (batch, bands, *sides))], [value(names[1], (batch, classes, *small))]
    return save(path, nodes, inputs, outputs, {"w": weight})


def _axis(softmax: bool) -> dict[str, Any]:
    return {"axis": 1} if softmax else {}


def conv_weight(path: Path) -> Any:
    """Return the weights of the convolution."""
    return numpy_helper.to_array(onnx.load(path).graph.initializer[0])


def linear(path: Path, weight: Any, bias: Any, *, rows: Side = "rows", kind: int = TensorProto.FLOAT) -> Path:
    """Save features (rows, columns) -> values (rows, outputs), as scikit-learn's linear models are exported."""
    nodes = [helper.make_node("Gemm", ["features", "w", "b"], ["values"])]
    inputs = [value("features", (rows, weight.shape[0]), kind)]
    outputs = [value("values", (rows, weight.shape[1]), kind)]
    return save(path, nodes, inputs, outputs, {"w": weight, "b": bias})


def external(folder: Path, place: str, *, file: str = "model.onnx") -> Path:
    """Save a network whose weights the graph says lie at `place`."""
    path = conv(folder / file)
    model = onnx.load(path)
    (tensor,) = model.graph.initializer
    content = tensor.raw_data
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, said in (("location", place), ("offset", "0"), ("length", str(len(content)))):
        tensor.external_data.add(key=key, value=said)
    path.write_bytes(model.SerializeToString())
    if not Path(place).is_absolute():
        (folder / place).write_bytes(content)
    return path
