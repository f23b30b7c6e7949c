"""Products of many rasters are read inside an IO process, as the kernel confines it: no sockets, files and memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from penstock.intake.local_media import LocalMedia
from penstock.processors.geo.read.gdal import rasterio
from penstock.workers.io.forks import ForkOptions
from penstock.workers.io.pool import IOPool
from penstock.workers.processing import Work
from tests.geo.test_product_files import READ, SENTINEL_2, UTM, model, neighbours
from tests.support.geo.products import CODES, NAMES, Source, write_safe
from tests.support.geo.scenes import answers, segment, write_scene

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux confines a process like this")

SCENE = Source(
    np.random.default_rng(9).integers(1, 9000, (6, 230, 180)).astype(np.uint16),
    NAMES, rasterio.crs.CRS.from_epsg(32633), UTM, 0,
)  # fmt: skip
ROWS = ("NetCDF 4", "NetCDF classic (CDF-1, CDF-2)", "Zarr version 2, zipped", "Zarr version 3 with shards, zipped")


@pytest.fixture(scope="module")
def pool() -> Iterator[IOPool]:
    with closing(IOPool(1, ForkOptions(1024 * 2**20))) as pool:
        yield pool


@pytest.mark.parametrize("row", [*ROWS, "SAFE"])
def test_a_confined_process_reads_a_product(row: str, pool: IOPool, tmp_path: Path) -> None:
    folder = tmp_path / "media"
    folder.mkdir()
    if row == "SAFE":
        bands = {CODES[name][0]: (numbers, 10) for name, numbers in zip(NAMES, SCENE.numbers, strict=True)}
        path, used = write_safe(folder / "a.zip", bands, SCENE.crs, UTM), model(SENTINEL_2)
        request = {"radiometry": {"scale": 1e-4, "offset": -0.1}}
    else:
        name, write = READ[row]
        path, used, request = write(folder / name, SCENE), model(), {}
    asked = {"scene": "media://1", "outputs": ["stats", "classes"]}
    work = Work(used, asked, {"media://1": LocalMedia(path)}, tmp_path / "artifacts", room=tmp_path)
    with pool.open(work, check=lambda: None, say=lambda _: None) as session:
        found = session.finish(answers(session.prepared.prompts, neighbours)).result.data

    tif = write_scene(tmp_path / "a.tif", SCENE.numbers, descriptions=NAMES, transform=UTM, nodata=0)
    _, expected = segment(tif, tmp_path / "out", network=neighbours, model=used, **request)
    assert found is not None
    assert expected.data is not None
    assert found["classes"] == expected.data["classes"]
