"""STAC item of a raster model with the Machine Learning Model extension (MLM 1.5)."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

import pystac

from penstock.errors import ConfigError
from penstock.models import Model
from penstock.processors.geo.options import (
    MapOptions,
    ModalityOptions,
    RegressionOptions,
    SceneOptions,
    SegmentationOptions,
    SensorOptions,
    read_options,
)
from penstock.processors.geo.write.stac import CLASSIFICATION, FILE, machine_name, multihash, stac_classes

MLM = "https://stac-extensions.github.io/mlm/v1.5.2/schema.json"
_EO = "https://stac-extensions.github.io/eo/v1.1.0/schema.json"
#: Interval of a model, which is of no date, as the MLM extension recommends.
_ANY_TIME = {"start_datetime": "1900-01-01T00:00:00Z", "end_datetime": "9999-12-31T23:59:59Z"}
_FRAMEWORKS = {
    "function": "Python",
    "lightgbm": "LightGBM",
    "olmoearth": "PyTorch",
    "onnx": "ONNX",
    "terratorch": "PyTorch",
    "torch": "PyTorch",
    "transformers": "Hugging Face",
}
#: Pattern of `mlm:name`.
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_.\s-]+[a-zA-Z0-9]")
#: Pattern of `mlm:framework`.
_FRAMEWORK = re.compile(r"[^\s._-].*[^\s._-]")
#: Functions that write a file of this suffix, as in the MLM extension; the format for others.
_ARTIFACT_TYPES = {
    "ckpt": "torch.save",
    "onnx": "onnx",
    "pt": "torch.save",
    "pt2": "torch.export.save",
    "pth": "torch.save",
    "safetensors": "safetensors.torch.save_file",
    "txt": "lightgbm.Booster.save_model",
}
_AXES = ["batch", "bands", "height", "width"]
#: Axes of a network that has one for the dates.
_AXES_WITH_TIME = ["batch", "bands", "time", "height", "width"]
_OUTPUT_AXES = ["batch", "channel", "height", "width"]


#: Processors whose models an item describes.
MAPPED = ("raster-segmentation", "raster-regression")


def stac_mlm(model: Model) -> dict[str, Any]:
    """Return the STAC item of a raster model: bands, scaling, tiling, classes, framework, weights and licence.

    The weights are an asset if the model's record tells where they are published. Raises `ConfigError` for a model that
    makes no map, and for wrong options.
    """
    if model.processor not in MAPPED:
        raise ConfigError(
            f"{model.name} makes no map, and only maps have such an item: its processor is {model.processor}"
        )
    regression = model.processor == "raster-regression"
    options = read_options(model, RegressionOptions) if regression else read_options(model, SegmentationOptions)
    item = pystac.Item(
        id=f"{model.name}-{machine_name(model.revision)}",
        geometry=None,
        bbox=None,
        datetime=None,
        properties=_properties(model, options),
        stac_extensions=[CLASSIFICATION, _EO, FILE, MLM],
    )
    if model.published_at is not None:
        item.add_asset("model", _weights(model, options, model.published_at))
    for link in model.links:
        item.add_link(pystac.Link("about", link))
    return item.to_dict(include_self_link=False, transform_hrefs=False)


def _properties(model: Model, options: SegmentationOptions | RegressionOptions) -> dict[str, Any]:
    output = _output(model, options)
    framework = _FRAMEWORKS.get(model.runner, model.runner)
    return {
        **_ANY_TIME,
        "title": model.title,
        "description": model.description.strip() or model.title,
        **_licence(model.licence),
        "mlm:name": _name(model.name),
        "mlm:architecture": options.network or "unknown",
        **({"mlm:framework": framework} if _FRAMEWORK.fullmatch(framework) else {}),
        "mlm:tasks": output["tasks"],
        "mlm:batch_size_suggestion": model.max_batch,
        "mlm:input": [_input(model, options, sensor) for sensor in options.sensors],
        "mlm:output": [output],
        "mlm:hyperparameters": _tiling(options),
    }


def _name(name: str) -> str:
    """Return a model's name as MLM allows it: three characters or more, a letter first, a letter or digit last."""
    return name if _NAME.fullmatch(name) else f"model-{name}".rstrip("._-")


def _licence(licence: str) -> dict[str, str]:
    if not licence:
        return {}
    return {"license": licence if re.fullmatch(r"[\w.+-]+", licence) else "other"}


def _tiling(options: MapOptions) -> dict[str, Any]:
    """Return the tiling parameters that other tools need to reproduce the results."""
    cut = {"tile_px": options.tile_px, "halo_px": options.halo_px, "stride_px": options.stride_px}
    if options.least_overlap_px is None:
        return cut
    return {"tile_px": options.tile_px, "overlap_px": options.least_overlap_px, "window": "hann"}


def _input(model: Model, options: SceneOptions, sensor: SensorOptions) -> dict[str, Any]:
    """Return the input of a sensor.

    Several dates are an axis for TerraTorch's networks, and further channels for all others.
    """
    bands, dates = len(sensor.bands), options.dates
    name = sensor.name if isinstance(sensor, ModalityOptions) else options.modality
    what = "reflectance" if not name or sensor.reflectance else "decibels" if sensor.decibels else "values"
    timed = model.runner == "terratorch" and dates > 1
    repeats = 1 if timed else dates
    order = ", date after date" if repeats > 1 else ""
    return {
        "name": name or "scene",
        "description": f"{what}, normalised band by band{order}",
        "bands": [band.name for band in sensor.bands] * repeats,
        "input": {
            "shape": [-1, bands, dates, -1, -1] if timed else [-1, bands * dates, -1, -1],
            "dim_order": _AXES_WITH_TIME if timed else _AXES,
            "data_type": "float32",
        },
        "value_scaling": [{"type": "z-score", "mean": band.mean, "stddev": band.std} for band in sensor.bands]
        * repeats,
        "resize_type": None,
    }


def _output(model: Model, options: SegmentationOptions | RegressionOptions) -> dict[str, Any]:
    if isinstance(options, SegmentationOptions):
        name, task, channels = "probability", "semantic-segmentation", len(options.classes)
        classes = {"classification:classes": stac_classes(options.classes)}
    else:
        name, task, channels, classes = "values", "regression", len(options.quantities), {}
    return {
        "name": name,
        "description": model.title,
        "tasks": [task],
        "result": {"shape": [-1, channels, -1, -1], "dim_order": _OUTPUT_AXES, "data_type": "float32"},
        **classes,
    }


def _weights(model: Model, options: SceneOptions, address: str) -> pystac.Asset:
    suffix = PurePosixPath(model.source).suffix.removeprefix(".").lower()
    fields: dict[str, Any] = {
        "mlm:artifact_type": _ARTIFACT_TYPES.get(suffix, "directory"),
        # The MLM extension requires them beside the weights; STAC 1.1 does not allow `bands` in the properties alone.
        "eo:bands": [{"name": band.name} for sensor in options.sensors for band in sensor.bands],
    }
    if model.sha256:
        fields["file:checksum"] = multihash(model.sha256)
    return pystac.Asset(address, title="weights", roles=["mlm:model", "mlm:weights"], extra_fields=fields)
