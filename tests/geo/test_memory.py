"""Memory grows with neither side of a scene."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def peak_mb(folder: Path, height: int, width: int) -> int:
    """Return the peak of resident memory of a process that segments one scene."""
    folder.mkdir()
    command = [sys.executable, "-m", "tests.geo.peak_memory", str(folder), str(height), str(width)]
    environment = {**os.environ, "GDAL_CACHEMAX": "16"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.slow
def test_scenes_six_times_as_high_or_as_wide_take_no_more(tmp_path: Path) -> None:
    scene = peak_mb(tmp_path / "scene", 1024, 2048)
    high = peak_mb(tmp_path / "high", 6144, 2048)
    wide = peak_mb(tmp_path / "wide", 1024, 12_288)
    # Held whole, the larger ones would take 190 MB more: 18 bytes for each of 10.5 million pixels.
    assert max(high, wide) < scene + 40
