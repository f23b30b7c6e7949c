"""Run one scene through the processor with an engine that costs nothing, and print the peak of resident memory in MB.

Started by `test_memory.py`, once per scene, because a process's peak never goes down.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.models import Model, read_catalogue
from penstock.processors.geo.gdal import rasterio
from tests.geo.scenes import NORTH_UP, segment


def write(path: Path, height: int, width: int) -> None:
    """Write a six-band uint16 scene row by row, so that writing it does not set the peak."""
    profile = {"driver": "GTiff", "dtype": "uint16", "count": 6, "crs": "EPSG:32633", "transform": NORTH_UP}
    profile |= {"tiled": True, "blockxsize": 512, "blockysize": 512, "nodata": 0, "compress": "deflate", "zlevel": 1}
    with rasterio.open(path, "w", height=height, width=width, **profile) as file:
        row = (np.arange(width) % 5000 + 1).astype(np.uint16)
        for top in range(0, height, 128):
            rows = min(128, height - top)
            window = rasterio.windows.Window(0, top, width, rows)
            file.write(np.broadcast_to(row, (6, rows, width)), window=window)


def constant(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the same probabilities everywhere without computing any."""
    return np.broadcast_to(np.float32([0.1, 0.2, 0.3, 0.3, 0.1])[:, None, None], (5, *pixels.shape[1:]))


def small_buffers() -> Model:
    """Return csmask with smaller tiles and strips, so that scenes of some megapixels fill them."""
    model = read_catalogue()["csmask"]
    return model.model_copy(update={"options": {**model.options, "tile_px": 256, "strip_bytes": 16 * 2**20}})


def main(folder: Path, height: int, width: int) -> None:
    """Measure one scene."""
    path = folder / "scene.tif"
    write(path, height, width)
    _, result = segment(path, folder / "out", network=constant, model=small_buffers())
    assert result.data is not None
    assert result.data["valid_pixels"] == height * width
    sys.stdout.write(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
