"""Products of many rasters by every way in: upload, form, command line, drop folder, and without a service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx2
import numpy as np
import pytest

from penstock.processors.geo.read.gdal import rasterio
from tests.geo.test_product_files import UTM
from tests.support.geo.products import CODES, NAMES, Source, write_netcdf, write_safe, write_zarr
from tests.support.polling import wait_for
from tests.support.stack import Stack, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: A model of six bands whose network answers at once, class 0.
SIX_BANDS = (
    """
[models.six-bands]
title = "Six bands"
runner = "fake"
processor = "raster-segmentation"
source = "."
revision = "1"

[models.six-bands.options]
halo_px = 0
tile_px = 256
default_radiometry = [{ dtypes = ["uint16"], scale = 1.0 }]
classes = [{ id = 0, name = "a", colour = "#000000" }, { id = 1, name = "b", colour = "#ffffff" }]
bands = [
"""
    + "".join(f'    {{ name = "{name}", synonyms = ["{CODES[name][0]}"], mean = 0.0, std = 1.0 }},\n' for name in NAMES)
    + "]\n"
)
PIXELS = 230 * 180


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "models.toml"
    path.write_text(SIX_BANDS)
    return path


@pytest.fixture(scope="module")
def service(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("products")
    (folder / "bucket" / "in").mkdir(parents=True)
    drops = (
        f'[[drops]]\nname = "inbox"\nbucket = "file://{folder}/bucket"\nprefix = "in/"\nmodel = "six-bands"\n'
        'output_prefix = "out/"\n'
    )
    with running(folder / "data", config=f'models = ["{models}"]\n{drops}', model="six-bands") as stack:
        yield stack


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a product of each kind, by the ending of its name."""
    folder = tmp_path_factory.mktemp("files")
    numbers = np.random.default_rng(9).integers(1, 9000, (6, 230, 180)).astype(np.uint16)
    scene = Source(numbers, NAMES, rasterio.crs.CRS.from_epsg(32633), UTM, 0)
    bands = {CODES[name][0]: (band, 10) for name, band in zip(NAMES, numbers, strict=True)}
    return {
        "nc": write_netcdf(folder / "scene.nc", scene),
        "zarr": write_zarr(folder / "scene.zarr.zip", scene),
        "safe": write_safe(folder / "scene.SAFE.zip", bands, scene.crs, UTM),
    }


@pytest.mark.parametrize("kind", ["nc", "zarr", "safe"])
def test_a_product_is_mapped_by_each_way_in(
    kind: str, service: Stack, products: dict[str, Path], tmp_path: Path
) -> None:
    path = products[kind]
    with service.client() as client:
        assert client.run("six-bands", scene=path, outputs=["stats"]).data["pixels"] == PIXELS
    with path.open("rb") as file:
        answer = httpx2.post(
            f"{service.url}/v1/jobs", headers={"Prefer": "wait=60"}, data={"model": "six-bands"},
            files={"scene": (path.name, file)}, timeout=90,
        )  # fmt: skip
    job = answer.json()
    assert job["output"] is not None, job
    assert job["output"]["json"]["pixels"] == PIXELS
    service.cli("submit", "six-bands", str(path), "--out", str(tmp_path / "out"))
    with rasterio.open(tmp_path / "out" / "classes.tif") as found:
        assert found.width * found.height == PIXELS


@pytest.mark.parametrize("kind", ["nc", "zarr", "safe"])
def test_a_product_in_a_drop_folder_is_mapped(kind: str, service: Stack, products: dict[str, Path]) -> None:
    bucket, path = service.data.parent / "bucket", products[kind]
    (bucket / "in" / path.name).write_bytes(path.read_bytes())
    marker = bucket / "out" / f"{path.name}.done.json"
    wait_for(marker.exists, "the product is not mapped", timeout_s=60)
    assert json.loads(marker.read_text())["data"]["pixels"] == PIXELS
    assert (bucket / "out" / path.name / "classes.tif").is_file()


@pytest.mark.parametrize("kind", ["nc", "zarr", "safe"])
def test_a_product_is_mapped_without_a_service(
    kind: str, service: Stack, models: Path, products: dict[str, Path], tmp_path: Path
) -> None:
    words = [
        "run",
        "six-bands",
        str(products[kind]),
        "--catalogue",
        str(models),
        "--out",
        str(tmp_path / "out"),
        "--json",
    ]
    done = service.cli(*words)
    assert json.loads(done.stdout)["output"]["json"]["pixels"] == PIXELS
    assert (tmp_path / "out" / "classes.tif").is_file()
