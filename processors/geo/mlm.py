"""A raster model as a STAC item with the Machine Learning Model extension (MLM 1.4)."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

import pystac

from penstock.models import Model
from penstock.processors.geo.options import RegressionOptions, SceneOptions, SegmentationOptions, read_options
from penstock.processors.geo.stac import CLASSIFICATION, FILE, UNKNOWN_TIME, machine_name, multihash, stac_classes

MLM = "https://stac-extensions.github.io/mlm/v1.4.0/schema.json"
_EO = "https://stac-extensions.github.io/eo/v1.1.0/schema.json"
_FRAMEWORKS = {"torch": "PyTorch", "onnx": "ONNX", "transformers": "Hugging Face"}
_AXES = ["batch", "channel", "height", "width"]


def stac_mlm(model: Model) -> dict[str, Any]:
    """Return the item of a raster model: its bands, scaling, tiles, classes, framework, weights and licence.

    Raises `ConfigError` if the model's options are not those of a raster model.
    """
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
    item.add_asset("model", _weights(model, options))
    for link in model.links:
        item.add_link(pystac.Link("about", link))
    return item.to_dict(include_self_link=False, transform_hrefs=False)


def _properties(model: Model, options: SegmentationOptions | RegressionOptions) -> dict[str, Any]:
    output = _output(model, options)
    return {
        **UNKNOWN_TIME,
        "title": model.title,
        "description": model.description.strip() or model.title,
        "license": model.licence if re.fullmatch(r"[\w.+-]+", model.licence) else "other",
        "mlm:name": model.name,
        "mlm:architecture": options.network or "unknown",
        "mlm:framework": _FRAMEWORKS.get(model.runner, model.runner),
        "mlm:tasks": output["tasks"],
        "mlm:batch_size_suggestion": model.max_batch,
        "mlm:input": [_input(options)],
        "mlm:output": [output],
        "mlm:hyperparameters": _cutting(options),
    }


def _cutting(options: SceneOptions) -> dict[str, Any]:
    """Return how scenes are cut, as other tools need it to make the same of them."""
    cut = {"tile_px": options.tile_px, "halo_px": options.halo_px, "stride_px": options.stride_px}
    if options.least_overlap_px is None:
        return cut
    return {"tile_px": options.tile_px, "overlap_px": options.least_overlap_px, "window": "hann"}


def _input(options: SceneOptions) -> dict[str, Any]:
    return {
        "name": "scene",
        "description": "reflectance, normalised band by band",
        "bands": [band.name for band in options.bands],
        "input": {
            "shape": [-1, len(options.bands) * options.dates, -1, -1],
            "dim_order": _AXES,
            "data_type": "float32",
        },
        "value_scaling": [{"type": "z-score", "mean": band.mean, "stddev": band.std} for band in options.bands],
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
        "result": {"shape": [-1, channels, -1, -1], "dim_order": _AXES, "data_type": "float32"},
        **classes,
    }


def _weights(model: Model, options: SceneOptions) -> pystac.Asset:
    suffix = PurePosixPath(model.source).suffix.removeprefix(".")
    fields: dict[str, Any] = {
        "mlm:artifact_type": {"pt": "torch.save"}.get(suffix, suffix or "directory"),
        # The MLM extension wants its bands described, and STAC 1.1 takes none of its own `bands` in properties.
        "eo:bands": [{"name": band.name} for band in options.bands],
    }
    if model.sha256:
        fields["file:checksum"] = multihash(model.sha256)
    return pystac.Asset(model.source, title="weights", roles=["mlm:model", "mlm:weights"], extra_fields=fields)
