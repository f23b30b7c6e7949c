"""Test helpers for names of bands: scenes of a few pixels, opened as in a job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.catalogue.records import read_catalogue
from penstock.processors.geo.options import Band, SegmentationOptions, read_options
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.read.inputs import Inputs, read_inputs
from penstock.processors.geo.request import SegmentationRequest
from tests.support.geo.scenes import Files, write_scene

SIX = read_options(read_catalogue()["csmask"], SegmentationOptions).bands


def opened(request: dict[str, Any], needed: Sequence[Band] = SIX) -> Inputs:
    defaults = read_options(read_catalogue()["csmask"], SegmentationOptions).default_radiometry
    return read_inputs(SegmentationRequest.model_validate(request), Files(), needed, defaults=defaults)


def order(found: Inputs) -> list[int]:
    return [band.band.number for band in found.bands]


def files(folder: Path, *names: str) -> list[dict[str, str]]:
    folder.mkdir(exist_ok=True)
    return [{"media": str(write_scene(folder / name, np.full((1, 4, 5), 9, np.uint16)))} for name in names]


def write(path: Path, count: int, tags: Sequence[dict[str, str]] = (), **options: Any) -> str:
    write_scene(path, np.arange(count * 20, dtype=np.uint16).reshape(count, 4, 5) + 1, **options)
    with rasterio.open(path, "r+") as file:
        for number, own in enumerate(tags, 1):
            file.update_tags(number, **{name: value for name, value in own.items() if not name.startswith("CENTRAL")})
            file.update_tags(number, ns="IMAGERY", **{n: v for n, v in own.items() if n.startswith("CENTRAL")})
    return str(path)
