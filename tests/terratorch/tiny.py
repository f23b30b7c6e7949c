"""Tiny Prithvis with random weights, laid out as the published ones, and what TerraTorch itself makes of a tile."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file

from penstock.models import Model
from penstock.processors.geo.read.gdal import rasterio

BANDS = ("BLUE", "GREEN", "RED", "NIR_NARROW", "SWIR_1", "SWIR_2")
#: Statistics of Prithvi-EO-2.0, in units of 1e-4.
MEAN = (1087.0, 1342.0, 1433.0, 2734.0, 1958.0, 1363.0)
STD = (2248.0, 2179.0, 2178.0, 1850.0, 1242.0, 1049.0)
SIDE = 64
TASKS = {
    "segmentation": "terratorch.tasks.SemanticSegmentationTask",
    "regression": "terratorch.tasks.PixelwiseRegressionTask",
}


def model_args(*, dates: int = 1, coordinates: Sequence[str] = (), **head: Any) -> dict[str, Any]:
    """Return what `config.json` says of a network: six bands, two blocks of a vision transformer, an UperNet."""
    return {
        "backbone": "prithvi_eo_v2_300",
        "backbone_pretrained": True,  # as published: the runner must not fetch them
        "backbone_bands": list(BANDS),
        "backbone_num_frames": dates,
        "backbone_img_size": SIDE,
        "backbone_coords_encoding": list(coordinates),
        "backbone_coords_scale_learn": True,
        "backbone_depth": 4,
        "backbone_embed_dim": 64,
        "backbone_num_heads": 2,
        "necks": [
            {"name": "SelectIndices", "indices": [0, 1, 2, 3]},
            {"name": "ReshapeTokensToImage", "effective_time_dim": dates},
            {"name": "LearnedInterpolateToPyramidal"},
        ],
        "decoder": "UperNetDecoder",
        "decoder_channels": 16,
        "head_dropout": 0.1,
        **head,
    }


def config(task: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return `config.json` as vLLM and the published fine-tunes have it."""
    init = {"model_factory": "EncoderDecoderFactory", "model_args": dict(args), "loss": "ce"}
    shapes = {"pixel_values": {"type": "torch.Tensor", "shape": [6, SIDE, SIDE]}}
    return {
        "architectures": ["Terratorch"],
        "num_classes": 0,
        "pretrained_cfg": {
            "seed_everything": 0,
            "data": {"class_path": "GenericNonGeoSegmentationDataModule", "init_args": {"batch_size": 16}},
            "model": {"class_path": TASKS[task], "init_args": init},
            "input": {"target": "pixel_values", "data": shapes},
        },
    }


def network(task: str, args: Mapping[str, Any]) -> torch.nn.Module:
    """Return a network that TerraTorch itself builds, with a head so loud that answers differ from pixel to pixel."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from terratorch.models import EncoderDecoderFactory

        torch.manual_seed(7)
        built: torch.nn.Module = EncoderDecoderFactory().build_model(
            task=task, **{**args, "backbone_pretrained": False}
        )
    with torch.no_grad():
        for name, weight in built.named_parameters():
            if name.startswith("head.") and name.endswith("weight"):
                weight.mul_(30)
            if name.endswith("embed_enc.scale"):
                weight.fill_(1.0)
    return built.eval()


def save(folder: Path, task: str, args: Mapping[str, Any], built: torch.nn.Module) -> Path:
    """Write a checkpoint's directory with safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(task, args)))
    save_file({name: tensor.contiguous() for name, tensor in built.state_dict().items()}, folder / "model.safetensors")
    return folder


def record(source: Path, **options: Any) -> Model:
    """Return the catalogue's record of a checkpoint with so many classes, or with named quantities."""
    classes = options.pop("classes", 0)
    given: dict[str, Any] = {
        "overlap": "hann",
        "tile_px": SIDE,
        "bands": [{"name": n, "mean": m, "std": s} for n, m, s in zip(BANDS, MEAN, STD, strict=True)],
        "default_radiometry": [{"dtypes": ["uint16", "float32"], "scale": 1.0}],
        **options,
    }
    if classes:
        given["classes"] = [{"id": i, "name": f"class {i}", "colour": f"#{i * 16:06x}"} for i in range(classes)]
    return Model(
        name="tiny",
        title="A tiny Prithvi",
        runner="terratorch",
        processor="raster-segmentation" if classes else "raster-regression",
        source=str(source),
        revision="1",
        options=given,
    )


def scene(path: Path, seed: int = 0, height: int = SIDE, width: int = SIDE) -> Path:
    """Write a scene of noise of six named bands, in UTM 33 N."""
    rng = np.random.default_rng(seed)
    numbers = rng.normal(np.array(MEAN)[:, None, None], 900, (6, height, width)).clip(1, 20_000).astype(np.uint16)
    place = {"crs": "EPSG:32633", "transform": rasterio.Affine(30, 0, 500_000, 0, -30, 5_000_000)}
    shape = {"count": 6, "height": height, "width": width, "dtype": "uint16"}
    with rasterio.open(path, "w", driver="GTiff", photometric="MINISBLACK", **place, **shape) as file:
        file.write(numbers)
        file.descriptions = BANDS
    return path


def normalised(*scenes: Path) -> torch.Tensor:
    """Return (1, 6, dates, rows, columns), or without the dates' axis for one: what TerraTorch's datasets make."""
    dates = []
    for path in scenes:
        with rasterio.open(path) as file:
            numbers = file.read().astype(np.float64)
        dates.append((numbers - np.array(MEAN)[:, None, None]) / np.array(STD)[:, None, None])
    stacked = torch.from_numpy(np.stack(dates, axis=1).astype(np.float32))[None]
    return stacked[:, :, 0] if len(scenes) == 1 else stacked


def answer(built: torch.nn.Module, pixels: torch.Tensor, **told: Any) -> npt.NDArray[np.float32]:
    """Return what TerraTorch's own forward pass says of one tile, without the batch's axis."""
    with torch.inference_mode():
        output = built(pixels, **{name: torch.tensor([value]).float() for name, value in told.items()}).output
    return np.asarray(output[0].numpy())
