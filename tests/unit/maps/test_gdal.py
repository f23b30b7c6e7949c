"""The process that draws tiles warps with GDAL, and still opens no formats whose files name other files."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.tile_service import plain_env

pytest.importorskip("rio_tiler", reason="needs rio-tiler: pip install '.[tiles]'")
_DRIVERS = """
import json
from penstock.maps.gdal import rasterio
with rasterio.Env() as env:
    print(json.dumps(sorted(env.drivers())))
"""


def test_drawing_has_the_warper_and_no_drivers_of_the_web() -> None:
    done = subprocess.run([sys.executable, "-c", _DRIVERS], env=plain_env(), check=True, capture_output=True)
    drivers = set(json.loads(done.stdout))
    assert {"VRT", "GTiff", "PNG"} <= drivers
    assert drivers & {"WMS", "WCS", "WMTS", "HTTP", "GTI"} == set()
