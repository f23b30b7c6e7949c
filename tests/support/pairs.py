"""A model for each pair of runner and processor that can work together: tiny networks, and the files that both read."""

from __future__ import annotations

import json
import tomllib
import warnings
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from penstock.models import Limits, Model
from penstock.workers.engine.sources import sha256_of
from tests.support.geo.rectangles import Rectangles
from tests.support.hub import a_bert, a_bert_classifier, a_segformer, a_vit, a_vit_backbone, a_wav2vec2, a_whisper
from tests.support.language import a_gpt2
from tests.support.model_directories import bytes_directory, words_directory, write_json
from tests.support.multimodal import a_llava
from tests.support.openai_server import FakeServer
from tests.support.prompted import DETECTORS, MASKERS
from tests.support.vision import a_clip, a_depth_anything, a_detr, a_mask2former
from tests.support.vllm_plugins import a_directory as a_plugin_directory
from tests.support.vllm_plugins import a_model as a_plugin

#: Images become 16 x 16 px.
_VIT = {"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 16}, "do_normalize": False}
_DETR = {"image_processor_type": "RTDetrImageProcessor", "size": {"height": 16, "width": 16}}
_BANDS = [{"name": name, "mean": 0.1, "std": 0.1} for name in ("red", "green", "blue")]
_TILES = {"bands": _BANDS, "tile_px": 32, "halo_px": 0, "stride_px": 1}
_CLASSES = [
    {"id": number, "name": name, "colour": f"#{number}02040"} for number, name in enumerate(("water", "wood", "soil"))
]
_COLUMNS = {"columns": [{"name": "a"}, {"name": "b"}], "batch_rows": 8}
_INPUT = {"inputs": {"x": {"shape": [3]}}}


class Network(nn.Module):
    """A network without weights that answers in the form that a processor reads."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, *inputs: Tensor) -> Any:
        return self.answer(*inputs)


def _colours(pixels: Tensor) -> Tensor:
    return pixels.mean(dim=(2, 3))


def _boxes(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores of three classes and the box of each of four queries."""
    queries = functional.avg_pool2d(pixels, 8).flatten(2).transpose(1, 2)
    return queries, torch.sigmoid(torch.cat((queries, queries[..., :1]), dim=2))


def _layout(image: Tensor) -> tuple[Tensor, ...]:
    """Return scores of two labels, then boxes, for the anchors of four strides."""
    pools = [
        functional.avg_pool2d(image, stride, ceil_mode=True).flatten(2).transpose(1, 2) for stride in (8, 16, 32, 64)
    ]
    return *(torch.sigmoid(pool[..., :2]) for pool in pools), *(torch.cat([pool] * 11, 2)[..., :32] for pool in pools)


#: By processor: the network, its inputs by name with an example of each, and the names of its outputs.
NETWORKS: Mapping[str, tuple[Callable[..., Any], dict[str, Tensor], tuple[str, ...]]] = {
    "audio-classification": (
        lambda sound: torch.stack((sound.mean(dim=1), sound.amax(dim=1)), dim=1),
        {"sound": torch.zeros(2, 800)},
        ("logits",),
    ),
    "depth-estimation": (lambda pixels: pixels.mean(dim=1), {"pixels": torch.zeros(2, 3, 16, 16)}, ("depth",)),
    "image-classification": (_colours, {"pixels": torch.zeros(2, 3, 16, 16)}, ("logits",)),
    "image-embedding": (_colours, {"pixels": torch.zeros(2, 3, 16, 16)}, ("embedding",)),
    "image-segmentation": (lambda pixels: pixels * 1, {"pixels": torch.zeros(2, 3, 16, 16)}, ("classes",)),
    "layout-detection": (
        _layout,
        {"image": torch.zeros(1, 3, 800, 608)},
        tuple(f"{what}_{stride}" for what in ("scores", "boxes") for stride in (8, 16, 32, 64)),
    ),
    "object-detection": (_boxes, {"pixels": torch.zeros(2, 3, 16, 16)}, ("logits", "boxes")),
    "raster-detection": (Rectangles(), {"pixels": torch.zeros(2, 3, 32, 32)}, ("boxes", "scores", "labels")),
    "raster-embedding": (_colours, {"pixels": torch.zeros(2, 3, 32, 32)}, ("embedding",)),
    "raster-regression": (
        lambda pixels: pixels.mean(dim=1, keepdim=True),
        {"pixels": torch.zeros(2, 3, 32, 32)},
        ("values",),
    ),
    "raster-segmentation": (
        lambda pixels: torch.softmax(pixels, dim=1),
        {"pixels": torch.zeros(2, 3, 32, 32)},
        ("probability",),
    ),
    "tabular": (lambda features: features.sum(dim=1), {"features": torch.zeros(8, 2)}, ("values",)),
    "tensor": (lambda x: x * 2, {"x": torch.zeros(2, 3)}, ("y",)),
    "text-embedding": (
        lambda input_ids: torch.stack((input_ids.float().mean(dim=1), input_ids.float().amax(dim=1)), dim=1),
        {"input_ids": torch.zeros(2, 8, dtype=torch.int64)},
        ("embedding",),
    ),
    "text-classification": (
        lambda input_ids: torch.stack((input_ids.float().mean(dim=1), input_ids.float().amax(dim=1)), dim=1),
        {"input_ids": torch.zeros(2, 8, dtype=torch.int64)},
        ("logits",),
    ),
    "text-ranking": (
        lambda input_ids: input_ids.float().mean(dim=1, keepdim=True),
        {"input_ids": torch.zeros(2, 8, dtype=torch.int64)},
        ("logits",),
    ),
    "video-classification": (_colours, {"pixels": torch.zeros(2, 3, 16, 16)}, ("logits",)),
    "video-segmentation": (lambda pixels: pixels * 1, {"pixels": torch.zeros(2, 3, 16, 16)}, ("classes",)),
}

_SEGMENTERS = ("image-segmentation", "video-segmentation")


def a_model(runner: str, processor: str, folder: Path) -> Model:
    """Write the files of a small model of a runner for a processor into a folder and return its record."""
    return MAKERS[runner](processor, folder)


def _record(runner: str, processor: str, source: Path | str, **fields: Any) -> Model:
    common = {"title": "M", "revision": "1", "device": "cpu", "max_batch": 2, "limits": Limits(max_items=2)}
    return Model(
        name=f"{runner}-{processor}", runner=runner, processor=processor, source=str(source), **{**common, **fields}
    )


def _options(processor: str, folder: Path) -> dict[str, Any]:
    """Write the files that a processor reads of the directory of an unknown network, and return its options."""
    folder.mkdir(parents=True, exist_ok=True)
    match processor:
        case "audio-classification":
            transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True).save_pretrained(folder)
        case "text-classification" | "text-embedding":
            words_directory(folder, max_tokens=8)
        case "text-ranking":
            words_directory(folder, max_tokens=8)
            write_json(folder, "config.json", {"max_position_embeddings": 8, "id2label": {0: "relevance"}})
        case "raster-segmentation":
            return {**_TILES, "classes": _CLASSES}
        case "raster-detection" | "raster-embedding":
            return {"bands": _BANDS, "tile_px": 32}
        case "raster-regression":
            return {**_TILES, "quantities": [{"name": "height", "unit": "m"}]}
        case "tabular":
            return {**_COLUMNS, "predictions": [{"output": "values", "columns": ["sum"]}]}
        case "tensor":
            return dict(_INPUT)
        case "layout-detection":
            return {"labels": ["text", "figure"]}
        case _:
            recipe = _DETR if processor == "object-detection" else _VIT
            write_json(folder, "preprocessor_config.json", recipe)
            write_json(folder, "config.json", {"id2label": {0: "red", 1: "green", 2: "blue"}})
    return {}


def _torch(processor: str, folder: Path) -> Model:
    """Export a program of any batch and any sides."""
    options, (answer, example, outputs) = _options(processor, folder), NETWORKS[processor]
    if processor in _SEGMENTERS:  # a program knows nothing of an image's own size
        write_json(folder, "preprocessor_config.json", {**_VIT, "do_resize": False})
    rows, auto = processor == "tabular", torch.export.Dim.AUTO
    sides = {name: dict.fromkeys(_varying(processor, array), auto) for name, array in example.items()}
    program = torch.export.export(
        Network(answer).eval(), tuple(example.values()), dynamic_shapes={"inputs": tuple(sides.values())}
    )
    torch.export.save(program, folder / "program.pt2")
    lines = ["rows = true"] if rows else []
    for name, array in example.items():
        shape = [str(side) if axis not in sides[name] else f"s{axis}" for axis, side in enumerate(array.shape)]
        shape = [int(side) if side.isdigit() else side for side in (shape if rows else shape[1:])]
        dtype = str(array.dtype).removeprefix("torch.")
        lines += [f"[inputs.{name}]", f'dtype = "{dtype}"', f"shape = {json.dumps(shape)}"]
    reduce = "argmax" if processor in _SEGMENTERS else "none"
    lines += [line for name in outputs for line in (f"[outputs.{name}]", f'reduce = "{reduce}"')]
    (folder / "penstock.toml").write_text("\n".join(lines))
    assert tomllib.loads((folder / "penstock.toml").read_text())["outputs"]
    files = {"program.pt2": sha256_of(folder / "program.pt2")}
    return _record("torch", processor, folder, options=options, files=files)


def _onnx(processor: str, folder: Path) -> Model:
    """Export a file of any batch and any sides; class ids are enlarged to the image's own size."""
    options, (answer, example, outputs) = _options(processor, folder), NETWORKS[processor]
    axes = {name: {axis: f"{name}_{axis}" for axis in _varying(processor, array)} for name, array in example.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Network(answer).eval(), tuple(example.values()), str(folder / "model.onnx"), dynamo=False,
            input_names=list(example), output_names=list(outputs),
            dynamic_axes=axes | {name: {0: "n"} for name in outputs},
        )  # fmt: skip
    table: dict[str, Any] = {"rows": True} if processor == "tabular" else {}
    if processor in _SEGMENTERS:
        table = {"outputs": {"classes": {"reduce": "argmax", "resize": True}}}
    return _record("onnx", processor, folder, options={**options, "onnx": table})


def _varying(processor: str, array: Tensor) -> list[int]:
    """Return the axes of any size: the batch, the sides of images, and the length of a sound or a text."""
    if processor == "layout-detection":
        return [0]
    long = {4: [2, 3], 2: [1] if processor.startswith(("audio-", "text-")) else []}
    return [0, *long.get(array.ndim, [])]


def _lightgbm(processor: str, folder: Path) -> Model:
    """Train a few trees: a classifier of three bands, or a sum of two columns."""
    rng, folder = np.random.default_rng(0), folder / "trees"
    options = _options(processor, folder)
    columns = len(_COLUMNS["columns"]) if processor == "tabular" else len(_BANDS)
    features = rng.normal(size=(200, columns))
    settings: dict[str, Any] = {"verbosity": -1, "num_threads": 1}
    if processor == "tabular":
        data = lightgbm.Dataset(features, features.sum(axis=1))
    else:
        data = lightgbm.Dataset(features, features.argmax(axis=1))
        settings |= {"objective": "multiclass", "num_class": 3}
    lightgbm.train(settings, data, num_boost_round=2).save_model(folder / "trees.txt")
    if processor == "tensor":
        options = {"inputs": {"pixels": {"shape": [3, "H", "W"]}}}
    return _record("lightgbm", processor, folder / "trees.txt", options=options)


def _fake(processor: str, folder: Path) -> Model:
    options = _options(processor, folder)
    if processor == "tabular":  # its prompts come back
        options["predictions"] = [{"output": "features", "columns": ["a again", "b again"]}]
    if processor.endswith("-classification"):
        options |= {"classes": 3, "answer": "logits"}
    return _record("fake", processor, folder, options=options)


def _vllm(processor: str, folder: Path) -> Model:
    if processor == "vllm-plugin":
        shapes = {"pixel_values": {"shape": [1, 2, 2]}}
        cfg = {"input": {"target": "pixel_values", "data": shapes}}
        return a_plugin(a_plugin_directory(folder, pretrained_cfg=cfg))
    options = {"inputs": {"input_ids": {"dtype": "int64", "shape": ["T"]}}} if processor == "tensor" else {}
    if processor.startswith("openai-"):
        options = {"engine": {"kv_cache_memory_bytes": 2**20}}
    words_directory(folder, max_tokens=8)
    return _record("vllm", processor, folder, options=options)


def _diffusers(processor: str, folder: Path) -> Model:
    from tests.support.diffusion import a_dreamer

    return _record("diffusers", processor, a_dreamer(folder))


@cache
def _server() -> FakeServer:
    """Return a server that answers until the process ends."""
    return FakeServer().__enter__()


def _openai_server(processor: str, folder: Path) -> Model:  # noqa: ARG001  (the server has the weights)
    return _record("openai-server", processor, _server().url, options={"model": "tiny"})


def _rapidocr(processor: str, folder: Path) -> Model:  # noqa: ARG001  (the package has the weights)
    return _record("rapidocr", processor, "package:rapidocr/models")


#: Directories of the hub by processor, complete or without what prepares their inputs.
_DIRECTORIES: Mapping[str, Callable[[Path], Any]] = {
    "audio-classification": a_wav2vec2,
    "depth-estimation": a_depth_anything,
    "image-classification": a_vit,
    "image-embedding": a_vit_backbone,
    "image-segmentation": a_segformer,
    "image-text-to-text": a_llava,
    "instance-segmentation": a_mask2former,
    "mask-generation": MASKERS["sam"],
    "object-detection": a_detr,
    "raster-detection": a_detr,
    "raster-embedding": a_vit_backbone,
    "raster-mask-generation": MASKERS["sam"],
    "raster-segmentation": partial(a_segformer, num_labels=3),
    "raster-zero-shot-detection": DETECTORS["owlvit"],
    "speech-recognition": a_whisper,
    "tensor": a_vit,
    "text-classification": lambda folder: (words_directory(folder), a_bert_classifier(folder, labels=3)),
    "text-embedding": lambda folder: (words_directory(folder), a_bert(folder)),
    "text-generation": lambda folder: (
        bytes_directory(folder), a_gpt2(folder, vocab_size=257, bos_token_id=256, eos_token_id=256)
    ),
    "text-image-embedding": a_clip,
    "text-ranking": lambda folder: (words_directory(folder), a_bert_classifier(folder, labels=1)),
    "video-classification": a_vit,
    "video-segmentation": a_segformer,
    "zero-shot-classification": a_clip,
    "zero-shot-object-detection": DETECTORS["owlvit"],
}  # fmt: skip


def _transformers(processor: str, folder: Path) -> Model:
    _DIRECTORIES[processor](folder)
    options: dict[str, Any] = {}
    if processor == "raster-segmentation":
        options = {**_TILES, "classes": _CLASSES}
    elif processor in ("raster-detection", "raster-embedding", "raster-zero-shot-detection"):
        options = {"bands": _BANDS, "tile_px": 32}
    elif processor == "tensor":
        options = {"task": "image-classification", "inputs": {"pixels": {"shape": [3, 32, 32]}}}
    elif processor.startswith(("image-", "video-")) and processor != "image-text-to-text":
        write_json(folder, "preprocessor_config.json", {**_VIT, "size": {"height": 32, "width": 32}})
    return _record("transformers", processor, folder, options=options)


#: Makers of models by runner.
MAKERS: Mapping[str, Callable[[str, Path], Model]] = {
    "diffusers": _diffusers,
    "fake": _fake,
    "lightgbm": _lightgbm,
    "onnx": _onnx,
    "openai-server": _openai_server,
    "rapidocr": _rapidocr,
    "torch": _torch,
    "transformers": _transformers,
    "vllm": _vllm,
}
