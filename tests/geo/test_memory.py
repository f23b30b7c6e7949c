"""Memory does not grow with the size of a scene."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr

from penstock.processors.geo.read.gdal import rasterio
from penstock.workers.io import sandbox
from tests.geo.test_product_files import UTM
from tests.support.geo.products import write_safe, zipped

ROOT = Path(__file__).parents[2]


def peak_mb(folder: Path, height: int, width: int, kind: str) -> int:
    """Return the peak resident memory of a process that segments one scene, with the allocator of IO processes."""
    folder.mkdir()
    command = [sys.executable, "-m", "tests.support.geo.peak_memory", str(folder), str(height), str(width), kind]
    environment = {**os.environ, **sandbox.environment(), "GDAL_CACHEMAX": "16"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.breadth(but=("halo",))
@pytest.mark.parametrize("kind", ["halo", "hann", "uncertainty", "zones", "objects", "vectors"])
def test_scenes_many_times_as_high_or_as_wide_take_no_more(kind: str, tmp_path: Path) -> None:
    scene = peak_mb(tmp_path / "scene", 8192, 1024, kind)  # high enough to fill the read-ahead buffer
    high = peak_mb(tmp_path / "high", 16_384, 1024, kind)
    wide = peak_mb(tmp_path / "wide", 1024, 16_384, kind)
    # If held completely, the larger scenes would take 150 MB more: 18 bytes for each of 8 million pixels.
    assert max(high, wide) < scene + 40


@pytest.mark.slow
@pytest.mark.breadth
def test_sparse_scenes_of_100_000_rows_or_columns_take_no_more_than_square_ones(tmp_path: Path) -> None:
    square = peak_mb(tmp_path / "square", 8000, 8000, "sparse")
    high = peak_mb(tmp_path / "high", 100_000, 3000, "sparse")
    wide = peak_mb(tmp_path / "wide", 3000, 100_000, "sparse")
    # If read completely, each would take 300 MB, the same again for the mask, and 1.2 GB after normalisation.
    # GDAL's overviews take about one kilobyte per column.
    assert max(high, wide) < square + 100


def big(path: Path, kind: str, side: int) -> Path:
    """Write one band of `side` x `side` pixels of 10 m as a product, with blocks that are not stored where possible."""
    x, y = (UTM.c + 10 * (np.arange(side) + 0.5), UTM.f - 10 * (np.arange(side) + 0.5))
    if kind == "SAFE":
        crs = rasterio.crs.CRS.from_epsg(32633)
        return write_safe(path, {"B02": (np.full((side, side), 3, np.uint16), 10)}, crs, UTM)
    if kind == "HDF5":
        with h5py.File(path, "w") as file:
            data = file.create_dataset("blue", (side, side), np.uint16, chunks=(512, 512), fillvalue=3)
            for at, (name, values) in enumerate((("y", y), ("x", x))):
                file[name] = values
                file[name].make_scale(name)
                data.dims[at].attach_scale(file[name])
        return path
    root = zarr.create_group(path.with_suffix(".tree"), attributes={"proj:epsg": 32633})
    for name, values in (("x", x), ("y", y)):
        root.create_array(name, shape=values.shape, dtype="f8", dimension_names=[name])[:] = values
    root.create_array(
        "blue", shape=(side, side), chunks=(512, 512), dtype="u2", fill_value=3, dimension_names=["y", "x"]
    )
    return zipped(path, path.with_suffix(".tree"))


@pytest.mark.slow
@pytest.mark.breadth(but=("HDF5",))
@pytest.mark.parametrize("kind", ["HDF5", "Zarr", "SAFE"])
def test_a_product_of_10980_pixels_is_read_by_windows(kind: str, tmp_path: Path) -> None:
    peaks = []
    for side in (2048, 10_980):
        path = big(tmp_path / f"{side}.bin", kind, side)
        command = [sys.executable, "-m", "tests.support.geo.peak_of_file", str(path), str(tmp_path / f"out-{side}")]
        environment = {**os.environ, **sandbox.environment()}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        pixels, peak = done.stdout.split()
        assert int(pixels) == side**2
        peaks.append(int(peak))
    # If held completely, the numbers would take 241 MB, and their mask 120 MB.
    assert peaks[1] < peaks[0] + 150
