"""Detectors in ONNX files, in the layouts of YOLO's and torchvision's exports, on photographs and on scenes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image

import penstock
from tests.support.geo.scenes import write_scene

SIDE = 64
#: Edges of the object that each network finds wherever the input is bright, in pixels of its input.
BOX = (16.0, 8.0, 32.0, 40.0)
RECORD = """
[models.boxes]
title = "Boxes"
runner = "onnx"
processor = "object-detection"
source = "net.onnx"
revision = "1"
[models.boxes.options]
detector = "{detector}"
labels = ["cat", "dog"]
preprocessor = {{ size = {{ height = 64, width = 64 }}, do_normalize = false }}
onnx = {onnx}

[models.scenes]
title = "Boxes on scenes"
runner = "onnx"
processor = "raster-detection"
source = "net.onnx"
revision = "1"
[models.scenes.options]
detector = "{detector}"
labels = ["cat", "dog"]
tile_px = 64
bands = [
    {{ name = "red", mean = 0.0, std = 255.0 }},
    {{ name = "green", mean = 0.0, std = 255.0 }},
    {{ name = "blue", mean = 0.0, std = 255.0 }},
]
default_radiometry = [{{ dtypes = ["uint8"], scale = 1.0 }}]
onnx = {onnx}
"""


def network(path: Path, outputs: dict[str, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]) -> None:
    """Write a network whose outputs are `constant + factor * the mean of its input`, so that a dark image has none."""
    mean = helper.make_node("ReduceMean", ["images"], ["mean"], keepdims=0)
    nodes, constants, values = [mean], [], []
    for name, (constant, factor) in outputs.items():
        for kind, array in (("constant", constant), ("factor", factor)):
            constants.append(onnx.numpy_helper.from_array(array.astype(np.float32), f"{name}_{kind}"))
        nodes.append(helper.make_node("Mul", [f"{name}_factor", "mean"], [f"{name}_product"]))
        nodes.append(helper.make_node("Add", [f"{name}_product", f"{name}_constant"], [name]))
        values.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, constant.shape))
    pixels = helper.make_tensor_value_info("images", TensorProto.FLOAT, (1, 3, SIDE, SIDE))
    graph = helper.make_graph(nodes, "net", [pixels], values, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def yolo(path: Path) -> str:
    """Write (1, 84, places) as YOLO 8 and later: here (1, 6, 20)."""
    constant, factor = np.zeros((1, 6, 20)), np.zeros((1, 6, 20))
    constant[0, :4, :2] = np.array([24.0, 24.0, 16.0, 32.0])[:, None]  # the object, twice
    factor[0, 5, :2] = 0.9, 0.8
    network(path, {"output0": (constant, factor)})
    return '{ inputs.pixels = { name = "images" }, outputs.boxes = { name = "output0" } }'


def rows(path: Path) -> str:
    """Write (1, 300, 6) as YOLO with its suppression: here (1, 5, 6)."""
    constant, factor = np.zeros((1, 5, 6)), np.zeros((1, 5, 6))
    constant[0, 0] = [*BOX, 0, 1]
    factor[0, 0, 4] = 0.9
    network(path, {"output0": (constant, factor)})
    return '{ inputs.pixels = { name = "images" }, outputs.boxes = { name = "output0" } }'


def boxes(path: Path) -> str:
    """Write boxes, labels and scores without a batch axis, as torchvision."""
    scores = np.array([0.9, 0.05])
    network(
        path,
        {
            "boxes": (np.array([BOX, (0, 0, 5, 5)]), np.zeros((2, 4))),
            "labels": (np.array([1, 0]), np.zeros(2)),
            "scores": (np.zeros(2), scores),
        },
    )
    outputs = ", ".join(f"outputs.{name} = {{ batch = false }}" for name in ("boxes", "labels", "scores"))
    return f'{{ inputs.pixels = {{ name = "images" }}, {outputs} }}'


@pytest.mark.parametrize("write", [yolo, rows, boxes])
def test_a_detector_finds_objects_in_photographs_and_scenes(write: Any, tmp_path: Path) -> None:
    table = write(tmp_path / "net.onnx")
    (tmp_path / "models.toml").write_text(RECORD.format(detector=write.__name__, onnx=table))
    Image.new("RGB", (128, 64), "white").save(tmp_path / "bright.jpg")
    Image.new("RGB", (128, 64), "black").save(tmp_path / "dark.jpg")
    write_scene(tmp_path / "scene.tif", np.full((3, 64, 64), 255, np.uint8))
    with penstock.Engine(catalogue=[tmp_path / "models.toml"]) as engine:
        found = engine.run("boxes", image=tmp_path / "bright.jpg").data
        assert engine.run("boxes", image=tmp_path / "dark.jpg").data["objects"] == []
        objects = engine.run("scenes", scene=tmp_path / "scene.tif", threshold=0.3).data["objects"]
    [one] = found["objects"]
    assert (one["label"], one["score"]) == ("dog", pytest.approx(0.9, abs=1e-5))
    assert one["box"] == {"xmin": 32.0, "ymin": 8.0, "xmax": 64.0, "ymax": 40.0}  # twice as wide as the input
    assert (objects["count"], objects["labels"][0]["label"]) == (1, "dog")
