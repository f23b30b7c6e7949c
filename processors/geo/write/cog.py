"""Raster files: write tiles to a scratch GeoTIFF, then convert it to a Cloud Optimized GeoTIFF.

The scratch file is uncompressed and sparse: tiles can be written in any order, only blocks with data use disk space,
and only GDAL's block cache is held in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt

from penstock.cores import cores
from penstock.processors.geo.options import NODATA, ClassLabel
from penstock.processors.geo.read.gdal import ColorInterp, rasterio, without_georeference
from penstock.processors.geo.read.raster import Scene
from penstock.processors.geo.tiling.plan import Box
from penstock.processors.outputs import OUTPUTS, Kind

COG_TYPE = "image/tiff; application=geotiff; profile=cloud-optimized"
BLOCK_PX = 512
#: Threads that make the overviews of a COG and compress it. The tiles are computed by then: the job waits for nothing
#: else.
_THREADS = min(8, cores())
#: Bytes of a raster whose overviews are kept uncompressed until the COG has them: it takes a third of them on the disk.
_PLAIN_BYTES = 512 * 2**20
#: Pixels of the rows that are read at once.
_STRIP_PX = 2**22
#: Columns from which one thread does it alone: several hold 1.2 kB more for each column.
_WIDE_PX = 40_000

Dtype = Literal["uint8", "float32"]
#: Resampling of overviews: of class numbers, and of quantities.
Overviews = Literal["MODE", "AVERAGE"]
#: Compression by the kind of numbers. Differences of class numbers mean nothing: without a predictor, class maps are as
#: small at level 5 as with one at level 6, and take about half of the processor time.
_COMPRESSION: Mapping[Overviews, Mapping[str, str]] = {
    "MODE": {"COMPRESS": "DEFLATE", "LEVEL": "5", "PREDICTOR": "NO"},
    "AVERAGE": {"COMPRESS": "DEFLATE", "PREDICTOR": "YES"},  # 2 for integers, 3 for floating point
}


class Scratch:
    """A scratch raster on the scene's grid, initially all nodata. A context manager.

    Nodata is `NODATA` in uint8 rasters and NaN in float32 rasters.
    """

    def __init__(
        self,
        path: Path,
        scene: Scene,
        count: int,
        tags: Mapping[str, str],
        dtype: Dtype = "uint8",
        *,
        block_px: int = BLOCK_PX,
    ) -> None:
        self.path = path
        place = {"gcps": list(scene.gcps), "crs": scene.gcps_crs} if scene.gcps and scene.transform is None else {}
        with without_georeference():
            self._dataset = rasterio.open(
                path,
                "w",
                driver="GTiff",
                dtype=dtype,
                count=count,
                height=scene.height,
                width=scene.width,
                nodata=NODATA if dtype == "uint8" else math.nan,
                tiled=True,
                blockxsize=block_px,
                blockysize=block_px,
                SPARSE_OK=True,
                BIGTIFF="IF_SAFER",
                INTERLEAVE="BAND",
                **(place or {"crs": scene.crs} | ({"transform": scene.transform} if scene.transform else {})),
            )
        self._dataset.update_tags(**tags)
        if scene.rpcs is not None:
            self._dataset.rpcs = scene.rpcs

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        self._dataset.close()

    def label_classes(self, labels: Sequence[ClassLabel], title: str) -> None:
        """Set palette, description and class names of the single band. Call before the first `write`."""
        self._dataset.write_colormap(1, {label.id: (*label.rgb, 255) for label in labels})
        self._dataset.set_band_description(1, title)
        # GDAL stores category names only in a side file. As band tags they stay inside the COG.
        self._dataset.update_tags(1, **{f"CLASS_{label.id}": label.name for label in labels})

    def label_bands(self, descriptions: Sequence[str], *, scale: float = 1, units: Sequence[str] = ()) -> None:
        """Set description and unit of each band, and one scale for all bands."""
        if scale != 1:
            self._dataset.scales = (scale,) * len(descriptions)
        self._dataset.colorinterp = (ColorInterp.gray, *(ColorInterp.undefined,) * (len(descriptions) - 1))
        for index, description in enumerate(descriptions, 1):
            self._dataset.set_band_description(index, description)
        for index, unit in enumerate(units, 1):
            self._dataset.set_band_unit(index, unit)

    def write(self, values: npt.NDArray[Any], box: Box) -> None:
        """Write (bands, rows, columns) of the raster's data type to a box of the scene."""
        window = rasterio.windows.Window(box.left, box.top, box.width, box.height)
        self._dataset.write(values, window=window)


def scratch_rows(scratches: Sequence[Path]) -> Iterator[tuple[Box, list[npt.NDArray[Any]]]]:
    """Yield the first band of closed scratch rasters of one size, (rows, columns) each, from top to bottom."""
    with ExitStack() as stack:
        stack.enter_context(without_georeference())
        files = [stack.enter_context(rasterio.open(path, driver="GTiff")) for path in scratches]
        height, width = files[0].shape
        rows = max(1, _STRIP_PX // width)
        for top in range(0, height, rows):
            box = Box(top, 0, min(top + rows, height), width)
            window = rasterio.windows.Window(0, top, width, box.height)
            yield box, [file.read(1, window=window) for file in files]


def write_cog(
    scratch: Path,
    path: Path,
    *,
    overviews: Overviews,
    block_px: int = BLOCK_PX,
    threads: int = _THREADS,
) -> None:
    """Convert a closed scratch raster to a COG with overviews by `MODE` (classes) or `AVERAGE` (quantities).

    The threads make overviews and compress blocks side by side; the file's bytes do not depend on their number.
    """
    with without_georeference(), rasterio.open(scratch) as dataset:
        threads = 1 if dataset.width > _WIDE_PX else threads
        size = dataset.width * dataset.height * sum(np.dtype(dtype).itemsize for dtype in dataset.dtypes)
    plain = {"COG_TMP_COMPRESSION": "NONE"} if size <= _PLAIN_BYTES else {}
    # The driver's NUM_THREADS are for compression: those for overviews are a setting of GDAL.
    with without_georeference(), rasterio.Env(GDAL_NUM_THREADS=str(threads), **plain):
        rasterio.shutil.copy(
            scratch,
            path,
            driver="COG",
            **_COMPRESSION[overviews],
            BLOCKSIZE=block_px,
            OVERVIEW_RESAMPLING=overviews,
            BIGTIFF="IF_SAFER",
            NUM_THREADS=str(threads),
        )


@dataclass(frozen=True, slots=True)
class Cog:
    """A closed scratch raster and the resampling of its overviews."""

    scratch: Path
    overviews: Overviews


def _write_kind(path: Path, cog: Cog) -> None:
    write_cog(cog.scratch, path, overviews=cog.overviews)


#: Output kinds of raster processors.
RASTER_OUTPUTS = OUTPUTS.register("cog", Kind(COG_TYPE, ".tif", _write_kind))


def write_category_names(path: Path, labels: Sequence[ClassLabel]) -> None:
    """Write the side file (`<raster>.aux.xml`) from which GDAL and QGIS read class names.

    It is written here because GDAL's own writing of such files is disabled (see `gdal`). Class ids start at 0.
    """
    root = ElementTree.Element("PAMDataset")
    band = ElementTree.SubElement(root, "PAMRasterBand", band="1")
    names = ElementTree.SubElement(band, "CategoryNames")
    for label in labels:
        ElementTree.SubElement(names, "Category").text = label.name
    ElementTree.indent(root)
    path.write_bytes(ElementTree.tostring(root, encoding="utf-8") + b"\n")
