"""Memory does not grow with the size of a scene."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.workers.io import sandbox

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
@pytest.mark.parametrize("kind", ["halo", "hann", "objects", "vectors"])
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
