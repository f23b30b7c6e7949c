"""Sample models: tiny networks with random weights, so that every kind can be tried without a download.

Their answers mean nothing. Each is a directory as the libraries save it, of at most a few megabytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from shutil import rmtree
from types import MappingProxyType
from typing import Any

from penstock.errors import ConfigError
from penstock.local import sample_networks as networks
from penstock.models import is_name

#: Shape of an array of a graph: a size, or a name for any size.
Sides = tuple[int | str, ...]
#: Versions that every supported onnxruntime computes.
_OPSET, _IR = 17, 10


@dataclass(frozen=True, slots=True)
class SampleKind:
    """A kind of sample model."""

    #: Writes the model's files into a folder.
    write: Callable[[Path], None]
    runner: str
    #: Arguments of `penstock run` that try the model.
    arguments: str
    #: The table `options` of its record, in TOML.
    options: str = ""
    #: The model's file where its source is no folder.
    file: str = ""


def write_sample(kind: str, folder: Path) -> str:
    """Write a sample model into a new folder, whose name is the model's, and return its record in TOML.

    Raises `ConfigError` for a name that no model may have. Leaves no folder behind where it fails.
    """
    made = KINDS[kind]
    if not is_name(folder.name):
        raise ConfigError(
            f"{folder.name!r} cannot be the name of a model, which has lower-case letters, digits, '.', '_' and '-' "
            "(64 at most): choose another folder"
        )
    if made.runner != "onnx":
        networks.library("torch").manual_seed(1)
    folder.mkdir(parents=True)
    try:
        made.write(folder)
    except BaseException:
        rmtree(folder)
        raise
    name = json.dumps(folder.name)
    options = f"\n\n[models.{name}.options]\n{made.options}" if made.options else ""
    source = json.dumps(str(folder / made.file))
    return (
        f'[models.{name}]\ntitle = "A random {kind} model: its answers mean nothing"\nrunner = "{made.runner}"\n'
        f'processor = "{kind}"\nsource = {source}\nrevision = "random"{options}\n'
    )


def _table(folder: Path) -> None:
    """Write a sum of two weighted columns: `features` (rows, 2) to `variable` (rows, 1)."""
    _graph(folder, "Gemm", ("features", ("rows", 2)), ("variable", ("rows", 1)), {"w": (2, 1), "b": (1,)})


def _rows(folder: Path) -> None:
    """Write a score of rows of 64 numbers: `rows` (batch, any, 64) to `score` (batch, any, 1)."""
    _graph(folder, "MatMul", ("rows", ("batch", "n", 64)), ("score", ("batch", "n", 1)), {"w": (64, 1)})


def _scene(folder: Path) -> None:
    """Write a weighted sum of six bands over 3 x 3 pixels: `pixels` (batch, 6, h, w) to `values` (batch, 1, h, w)."""
    inputs, outputs = ("pixels", ("batch", 6, "h", "w")), ("values", ("batch", 1, "h", "w"))
    _graph(folder, "Conv", inputs, outputs, {"w": (1, 6, 3, 3), "b": (1,)}, pads=[1, 1, 1, 1])


def _graph(
    folder: Path,
    operator: str,
    inputs: tuple[str, Sides],
    outputs: tuple[str, Sides],
    weights: Mapping[str, Sides],
    **attributes: Any,
) -> None:
    """Write a graph of one operator with random float32 weights."""
    onnx, numpy = import_module("onnx"), import_module("numpy")
    random, made = numpy.random.default_rng(1), onnx.helper
    arrays = {name: random.normal(size=shape).astype("float32") for name, shape in weights.items()}
    graph = made.make_graph(
        [made.make_node(operator, [inputs[0], *arrays], [outputs[0]], **attributes)], folder.name,
        [made.make_tensor_value_info(inputs[0], onnx.TensorProto.FLOAT, inputs[1])],
        [made.make_tensor_value_info(outputs[0], onnx.TensorProto.FLOAT, outputs[1])],
        initializer=[onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )  # fmt: skip
    versions = [made.make_opsetid("", _OPSET)]
    onnx.save(made.make_model(graph, opset_imports=versions, ir_version=_IR), str(folder / "model.onnx"))


#: Columns of the table, and the prediction.
_COLUMNS = """onnx = { rows = true }
columns = [{ name = "rain" }, { name = "sun" }]
predictions = [{ output = "variable", columns = ["harvest"] }]
"""
#: Bands of the scenes that `penstock sample` writes, without means of a training: the network had none.
_BANDS = """bands = [
    { name = "blue", mean = 0.1, std = 0.1 },
    { name = "green", mean = 0.1, std = 0.1 },
    { name = "red", mean = 0.1, std = 0.1 },
    { name = "nir", mean = 0.1, std = 0.1 },
    { name = "swir16", mean = 0.1, std = 0.1 },
    { name = "swir22", mean = 0.1, std = 0.1 },
]
default_radiometry = [{ dtypes = ["uint16"], scale = 1e-4, nodata = 0.0 }]
"""
#: Three bands as colours: reflectance from 0 to 0.3 is black to white for OWL-ViT's processor.
_SHOWN = """bands = [
    { name = "red", mean = 0.1444, std = 0.0806 },
    { name = "green", mean = 0.1373, std = 0.0784 },
    { name = "blue", mean = 0.1225, std = 0.0827 },
]
default_radiometry = [{ dtypes = ["uint16"], scale = 1e-4, nodata = 0.0 }]
tile_px = 64
"""
_CLASSES = """classes = [{ id = 0, name = "one", colour = "#8c9a4b" }, { id = 1, name = "two", colour = "#2166ac" }]
tile_px = 64
overlap = "hann"
"""
_QUANTITY = """quantities = [{ name = "random", description = "A random sum of all bands: it means nothing" }]
halo_px = 1
"""
_PATCHES = """tile_px = 32
patch_px = 8
pooling = "patches"
"""
_ROWS = """inputs.rows = { dtype = "float32", shape = ["n", 64] }
"""


def _hub(write: Callable[[Path], None], arguments: str, options: str = "", runner: str = "transformers") -> SampleKind:
    return SampleKind(write, runner, arguments, options)


def _onnx(write: Callable[[Path], None], arguments: str, options: str = "") -> SampleKind:
    return SampleKind(write, "onnx", arguments, options, "model.onnx")


_LABELLER, _SEGMENTER = networks.vit("ViTForImageClassification"), networks.segformer(3)
#: All kinds by the name of their processor.
KINDS: Mapping[str, SampleKind] = MappingProxyType(
    {
        "audio-classification": _hub(networks.audio_classification, "speech.wav"),
        "depth-estimation": _hub(networks.depth_estimation, "photo.jpg"),
        "image-classification": _hub(_LABELLER, "photo.jpg"),
        "image-embedding": _hub(networks.vit("ViTModel"), "photo.jpg"),
        "image-generation": _hub(networks.image_generation, '"a lighthouse" --param steps=4', runner="diffusers"),
        "image-segmentation": _hub(_SEGMENTER, "photo.jpg"),
        "image-text-to-text": _hub(networks.image_text_to_text, "photo.jpg --param prompt='What is this?'"),
        "instance-segmentation": _hub(networks.instance_segmentation, "photo.jpg"),
        "mask-generation": _hub(networks.mask_generation, "photo.jpg --param objects='[{\"points\": [[60, 40]]}]'"),
        "object-detection": _hub(networks.object_detection(3, 96, 128), "photo.jpg"),
        "raster-detection": _hub(
            networks.object_detection(6, 64, 64), "scene.tif --param threshold=0.3", _BANDS + "tile_px = 64\n"
        ),
        "raster-embedding": _hub(networks.vit("ViTModel", 6), "scene.tif", _BANDS + _PATCHES),
        "raster-mask-generation": _hub(
            networks.mask_generation, "scene.tif --param objects='[{\"points\": [[13.751, 45.132]]}]'"
        ),
        "raster-regression": _onnx(_scene, "scene.tif", _BANDS + _QUANTITY),
        "raster-segmentation": _hub(networks.segformer(6, {0: "one", 1: "two"}), "scene.tif", _BANDS + _CLASSES),
        "raster-zero-shot-detection": _hub(networks.word_detection, "scene.tif --param labels=cat,dog", _SHOWN),
        "speech-recognition": _hub(networks.speech_recognition, "speech.wav"),
        "tabular": _onnx(_table, "plots.csv", _COLUMNS),
        "tensor": _onnx(_rows, "rows.npy", _ROWS),
        "text-classification": _hub(
            networks.text_classification({0: "negative", 1: "positive"}), '"A pleasant evening."'
        ),
        "text-embedding": _hub(networks.text_embedding, '"A cat sits on the mat."'),
        "text-generation": _hub(networks.text_generation, '"Once upon a time"'),
        "text-image-embedding": _hub(networks.zero_shot, '"a cat" "a dog"'),
        "text-ranking": _hub(
            networks.text_classification({0: "relevance"}),
            '"A cat sleeps." "It rains." --param queries=\'What do cats do?\'',
        ),
        "video-classification": _hub(_LABELLER, "clip.mp4"),
        "video-segmentation": _hub(_SEGMENTER, "clip.mp4"),
        "zero-shot-classification": _hub(networks.zero_shot, "photo.jpg --param labels=cat,dog"),
        "zero-shot-object-detection": _hub(networks.word_detection, "photo.jpg --param labels=cat,dog"),
    }
)
