"""Writing results: tiles into a scratch GeoTIFF, then a Cloud Optimized GeoTIFF of it, and the preview.

The scratch file is uncompressed and sparse: tiles land in it in any order and at any place, only blocks that hold data
take room on the disk, and nothing but GDAL's block cache is held in memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from penstock.processors.geo.gdal import ColorInterp, Resampling, rasterio, without_georeference
from penstock.processors.geo.options import NODATA, ClassLabel
from penstock.processors.geo.plan import Box
from penstock.processors.geo.raster import Scene

COG_TYPE = "image/tiff; application=geotiff; profile=cloud-optimized"
#: Probabilities are whole steps of 1/254, so that 255 is free for nodata.
STEPS = NODATA - 1
_BLOCK_PX = 512


class Scratch:
    """A raster of uint8 bands on the scene's grid, `NODATA` where nothing was written. A context manager."""

    def __init__(self, path: Path, scene: Scene, count: int, tags: Mapping[str, str]) -> None:
        self.path = path
        place = {"gcps": list(scene.gcps), "crs": scene.gcps_crs} if scene.gcps and scene.transform is None else {}
        with without_georeference():
            self._dataset = rasterio.open(
                path,
                "w",
                driver="GTiff",
                dtype="uint8",
                count=count,
                height=scene.height,
                width=scene.width,
                nodata=NODATA,
                tiled=True,
                blockxsize=_BLOCK_PX,
                blockysize=_BLOCK_PX,
                SPARSE_OK=True,
                BIGTIFF="IF_SAFER",
                INTERLEAVE="BAND",
                **(place or {"crs": scene.crs} | ({"transform": scene.transform} if scene.transform else {})),
            )
        self._dataset.update_tags(**tags)

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        self._dataset.close()

    def label_classes(self, labels: Sequence[ClassLabel], title: str) -> None:
        """Give the one band its palette, description and class names. Before the first `write`."""
        self._dataset.write_colormap(1, {label.id: (*label.rgb, 255) for label in labels})
        self._dataset.set_band_description(1, title)
        # GDAL keeps category names in a side file only; as tags of the band they travel inside the COG.
        self._dataset.update_tags(1, **{f"CLASS_{label.id}": label.name for label in labels})

    def label_probabilities(self, labels: Sequence[ClassLabel]) -> None:
        """Give each band its class's name and the scale that turns it into a probability."""
        self._dataset.scales = (1 / STEPS,) * len(labels)
        self._dataset.colorinterp = (ColorInterp.gray, *(ColorInterp.undefined,) * (len(labels) - 1))
        for label in labels:
            self._dataset.set_band_description(label.id + 1, f"probability of {label.name}")

    def write(self, values: npt.NDArray[np.uint8], box: Box) -> None:
        """Write uint8 (bands, rows, columns) to a box of the scene."""
        window = rasterio.windows.Window(box.left, box.top, box.width, box.height)
        self._dataset.write(values, window=window)


def write_cog(scratch: Path, path: Path, *, overviews: str) -> None:
    """Copy a closed scratch raster to a COG, with overviews by `MODE` (classes) or `AVERAGE` (what can be averaged)."""
    with without_georeference():
        rasterio.shutil.copy(
            scratch,
            path,
            driver="COG",
            COMPRESS="DEFLATE",
            PREDICTOR="STANDARD",
            BLOCKSIZE=_BLOCK_PX,
            OVERVIEW_RESAMPLING=overviews,
            BIGTIFF="IF_SAFER",
        )


def write_preview(scratch: Path, path: Path, labels: Sequence[ClassLabel], *, side_px: int = 1024) -> None:
    """Write the class raster as a PNG in the classes' colours, transparent where there is no data."""
    with without_georeference(), rasterio.open(scratch, driver="GTiff") as dataset:
        shrink = min(1.0, side_px / max(dataset.height, dataset.width))
        shape = tuple(max(1, round(side * shrink)) for side in (dataset.height, dataset.width))
        classes = dataset.read(1, out_shape=shape, resampling=Resampling.mode)
    palette = np.zeros((NODATA + 1, 3), dtype=np.uint8)
    palette[[label.id for label in labels]] = [label.rgb for label in labels]
    image = Image.fromarray(classes, mode=None).convert("L")
    image.putpalette(palette.tobytes())
    image.save(path, format="PNG", transparency=NODATA, optimize=True)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write JSON for people and programs."""
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
