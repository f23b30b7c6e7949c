"""Preview images (PNG) of the results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from penstock.processors.geo.options import NODATA, ClassLabel
from penstock.processors.geo.read.gdal import Resampling, rasterio, without_georeference

_SIDE_PX = 1024
#: Colour ramp from low to high with even lightness (sampled from matplotlib's viridis, CC0).
_RAMP = ("#440154", "#3b528b", "#21918c", "#5ec962", "#fde725")


def write_preview(raster: Path, path: Path, labels: Sequence[ClassLabel]) -> None:
    """Write a class raster as a PNG in the classes' colours; nodata is transparent.

    The longer side is at most 1024 px. Rasters with reversed rows or columns are flipped so that north is up.
    """
    classes = _small(raster, Resampling.mode)
    palette = np.zeros((NODATA + 1, 3), dtype=np.uint8)
    palette[[label.id for label in labels]] = [label.rgb for label in labels]
    _save(classes, palette, path)


def write_value_preview(raster: Path, path: Path, low: float, high: float) -> None:
    """Write the first band of a float raster as a PNG like `write_preview`: dark at `low`, light at `high`."""
    values = _small(raster, Resampling.average)
    _save(steps(values, low, high), ramp(NODATA + 1), path)


def steps(values: npt.NDArray[Any], low: float, high: float) -> npt.NDArray[np.uint8]:
    """Return uint8 of the same shape: 0 at `low`, 254 at `high`, 255 for NaN; see `ramp` for the colours."""
    shares = np.clip((values - low) / ((high - low) or 1), 0, 1)
    return np.where(np.isnan(shares), NODATA, np.rint(np.nan_to_num(shares) * (NODATA - 1))).astype(np.uint8)


def ramp(count: int) -> npt.NDArray[np.uint8]:
    """Return uint8 (count, 3): so many colours from dark to light."""
    anchors = np.array([tuple(bytes.fromhex(colour[1:])) for colour in _RAMP])
    at = np.linspace(0, len(_RAMP) - 1, count)
    channels = [np.interp(at, range(len(_RAMP)), anchors[:, i]) for i in range(3)]
    colours: npt.NDArray[np.uint8] = np.rint(np.stack(channels, axis=1)).astype(np.uint8)
    return colours


def _small(raster: Path, resampling: Any) -> npt.NDArray[Any]:
    with without_georeference(), rasterio.open(raster, driver="GTiff") as dataset:
        shrink = min(1.0, _SIDE_PX / max(dataset.height, dataset.width))
        shape = tuple(max(1, round(side * shrink)) for side in (dataset.height, dataset.width))
        band: npt.NDArray[Any] = dataset.read(1, out_shape=shape, resampling=resampling)
        a, b, _, d, e, _ = tuple(dataset.transform)[:6]
        placed = not dataset.transform.is_identity and not (b or d)
    return band[:: -1 if placed and e > 0 else 1, :: -1 if placed and a < 0 else 1]


def _save(numbers: npt.NDArray[np.uint8], palette: npt.NDArray[np.uint8], path: Path) -> None:
    image = Image.fromarray(np.ascontiguousarray(numbers), mode=None).convert("L")
    image.putpalette(palette.tobytes())
    image.save(path, format="PNG", transparency=NODATA, optimize=True)
