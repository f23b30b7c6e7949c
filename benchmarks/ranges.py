"""Bytes of a COG that an area of 512 px takes for csmask: `python -m benchmarks.ranges`.

Writes COGs of six bands of noise, 4096 px wide, in blocks of 512 and 256 px, and plans areas at three places, with the
record's `halo_exact` and without. Nothing is computed: a plan fetches all that it needs. Takes a minute.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from penstock.catalogue.records import read_catalogue
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.segmentation import RasterSegmentation
from tests.geo.test_ranges import UTM, PartialFiles
from tests.support.geo.scenes import NORTH_UP

SIDE_PX, AREA_PX, BANDS = 4096, 512, 6
#: Left and upper edges of the areas, and what they show.
PLACES = {"middle": (1280, 1280), "on a block": (1024, 1024), "anywhere": (1600, 1500)}


def main() -> None:
    """Print a line for each file, record and place."""
    with tempfile.TemporaryDirectory() as folder:
        for block_px in (512, 256):
            path = _cog(Path(folder), block_px)
            size = path.stat().st_size / 1e6
            for exact in (False, True):
                found = {name: _fetched(Path(folder), path, left_top, exact=exact) for name, left_top in PLACES.items()}
                said = ", ".join(f"{name} {count / 1e6:.1f} MB" for name, count in found.items())
                sys.stdout.write(f"blocks of {block_px} px, {size:.0f} MB, halo_exact = {str(exact).lower()}: {said}\n")


def _cog(folder: Path, block_px: int) -> Path:
    numbers = np.random.default_rng(1).normal(2000, 120, (BANDS, SIDE_PX, SIDE_PX)).clip(1, 9000).astype(np.uint16)
    plain, path = folder / "plain.tif", folder / f"{block_px}.tif"
    profile = {"driver": "GTiff", "dtype": "uint16", "crs": UTM, "transform": NORTH_UP, "tiled": True}
    with rasterio.open(plain, "w", count=BANDS, height=SIDE_PX, width=SIDE_PX, **profile) as file:
        file.write(numbers)
    rasterio.shutil.copy(
        plain, path, driver="COG", COMPRESS="DEFLATE", BLOCKSIZE=block_px, OVERVIEWS="NONE", INTERLEAVE="PIXEL"
    )
    plain.unlink()
    return path


def _fetched(folder: Path, path: Path, left_top: tuple[int, int], *, exact: bool) -> int:
    """Return the bytes that the plan of an area fetches, with the file's beginning."""
    model = read_catalogue()["csmask"]
    processor = RasterSegmentation(model.model_copy(update={"options": {**model.options, "halo_exact": exact}}))
    left, top = left_top
    bbox = [*(NORTH_UP @ (left, top + AREA_PX)), *(NORTH_UP @ (left + AREA_PX, top))]
    request = processor.request(
        scene=str(path), outputs=("classes",), area={"bbox": bbox, "crs": UTM}, bands=list(range(1, BANDS + 1)),
        radiometry={"scale": 1e-4},
    )  # fmt: skip
    with tempfile.TemporaryDirectory(dir=folder) as made:
        files = PartialFiles(Path(made) / "partial")
        processor.pre_process(request, files)
    return files.filled_bytes


if __name__ == "__main__":
    main()
