"""Quantities are written as float rasters with exact statistics from two passes."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from rio_cogeo import cog_validate

from penstock.processors.geo.options import Quantity
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.read.provenance import Provenance, SourceFile
from penstock.processors.geo.read.radiometry import BandRadiometry, Radiometry
from penstock.processors.geo.read.raster import read_scene
from penstock.processors.geo.request import RegressionRequest
from penstock.processors.geo.tiling.plan import Box
from penstock.processors.geo.write.percentiles import PERCENTILES, read_band_statistics
from penstock.processors.geo.write.value_outputs import ValueOutputs, encode_values
from tests.support.geo.scenes import Folder, make_model, pattern, read, write_scene

DEPTH = Quantity(name="depth", unit="m", description="Depth of the water")
HEAT = Quantity(name="heat")
TIME = datetime(2020, 1, 27, 10, tzinfo=UTC)
RADIOMETRY = Radiometry((BandRadiometry(1.0, 0.0, None, "none", "none"),))
Values = npt.NDArray[np.float32]


def produce(values: Values, folder: Path, *, wanted: tuple[str, ...] = ("values", "preview", "stats", "item")) -> Any:
    """Write quantities (bands, rows, columns) in tiles of 100 rows; NaN is nodata. Return the sink and the result."""
    options = {key: value for key, value in make_model().options.items() if key != "classes"}
    quantities = (DEPTH, HEAT)[: len(values)]
    model = make_model().model_copy(
        update={
            "processor": "raster-regression",
            "options": {**options, "quantities": [quantity.model_dump() for quantity in quantities]},
        }
    )
    scene = read_scene(write_scene(folder / "s.tif", pattern(*values.shape[1:])), model.limits)
    sink = Folder(folder / "out")
    request = RegressionRequest(scene="media://1", outputs=wanted)  # type: ignore[arg-type]
    with ValueOutputs(model, quantities, scene, RADIOMETRY, request, sink) as products:
        for top in range(0, scene.height, 100):
            tile = values[:, top : top + 100]
            valid = ~np.isnan(tile[0])
            products.write(encode_values(tile, valid), Box(top, 0, top + tile.shape[1], scene.width))
        stats = products.finish(Provenance((SourceFile("media://1", None),), {"bands": []}, (TIME,)))
    return sink, stats


def waves(height: int, width: int) -> Values:
    rows, columns = np.mgrid[0:height, 0:width].astype(np.float32)
    values = np.stack([np.sin(rows / 30) * columns, columns - rows])
    values[:, : height // 4, : width // 3] = np.nan
    return values


def test_the_raster_is_a_float_cog_with_units_and_its_own_nodata(tmp_path: Path) -> None:
    values = waves(700, 900)
    sink, _ = produce(values, tmp_path)
    path = sink.artifacts["values.tif"]
    assert cog_validate(path, strict=True) == (True, [], [])
    np.testing.assert_array_equal(read(path), values)
    with rasterio.open(path) as file:
        assert set(file.dtypes) == {"float32"}
        assert set(file.block_shapes) == {(512, 512)}
        assert math.isnan(file.nodata)
        assert file.units == ("m", None)
        assert file.descriptions == ("Depth of the water", "heat")
        assert file.tags()["MODEL"] == "toy"
        assert file.profile["compress"] == "deflate"
        assert file.tags(ns="IMAGE_STRUCTURE")["PREDICTOR"] == "3"
    with rasterio.open(path, overview_level=0) as file:
        small = file.read(1)
        means = np.nanmean(values[0, 350:450, 300:600].reshape(50, 2, 150, 2), axis=(1, 3))
        np.testing.assert_allclose(small[175:225, 150:300], means, atol=1e-3)
        assert np.isnan(small[:87, :150]).all()
    assert {file.name for file in (tmp_path / "out").iterdir()} == set(sink.artifacts)


def test_the_statistics_are_numpys(tmp_path: Path) -> None:
    values = waves(700, 900)
    sink, stats = produce(values, tmp_path)
    assert json.loads(sink.artifacts["stats.json"].read_text()) == stats
    for band, quantity, said in zip(values, (DEPTH, HEAT), stats["values"], strict=True):
        there = band[~np.isnan(band)].astype(np.float64)
        assert (said["name"], said["unit"], said["description"]) == (quantity.name, quantity.unit, quantity.description)
        assert said["count"] == there.size
        assert (said["min"], said["max"]) == (there.min(), there.max())
        assert (said["mean"], said["std"]) == pytest.approx((there.mean(), there.std()), rel=1e-12)
        expected = np.percentile(there, PERCENTILES, method="inverted_cdf")
        assert list(said["percentiles"].values()) == expected.tolist()


@settings(max_examples=50, deadline=None)
@given(
    values=st.lists(
        st.floats(width=32, allow_nan=True, allow_infinity=False, allow_subnormal=True), min_size=1, max_size=60
    )
)
def test_percentiles_are_exact_for_any_numbers(values: list[float], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = write_scene(tmp_path_factory.mktemp("v") / "v.tif", np.array([[values]], np.float32), nodata=math.nan)
    there = np.array([value for value in values if not math.isnan(value)], np.float64)
    found = read_band_statistics(path, 1)
    assert found.count == there.size
    if there.size:
        assert list(found.percentiles.values()) == np.percentile(there, PERCENTILES, method="inverted_cdf").tolist()
        assert (found.minimum, found.maximum) == (there.min(), there.max())


def test_without_data_there_are_no_statistics_and_the_picture_is_empty(tmp_path: Path) -> None:
    sink, stats = produce(np.full((1, 60, 70), np.nan, np.float32), tmp_path)
    (said,) = stats["values"]
    assert (said["count"], said["min"], said["mean"], said["percentiles"]) == (0, None, None, {})
    with Image.open(sink.artifacts["preview.png"]) as image:
        assert image.size == (70, 60)
        assert image.convert("RGBA").getextrema()[3] == (0, 0)


def test_what_is_no_number_is_no_data() -> None:
    numbers = np.array([[[1, np.inf, np.nan, -np.inf, 5]]], np.float32)
    valid = np.array([[True, True, True, True, False]])
    expected = np.array([[[1, np.nan, np.nan, np.nan, np.nan]]], np.float32)
    np.testing.assert_array_equal(encode_values(numbers, valid)["values"], expected)


def test_the_preview_grows_lighter_with_the_value(tmp_path: Path) -> None:
    values = np.broadcast_to(np.linspace(0, 50, 200, dtype=np.float32), (1, 100, 200)).copy()
    values[:, :50] = np.nan
    sink, _ = produce(values, tmp_path, wanted=("preview",))
    with Image.open(sink.artifacts["preview.png"]) as image:
        pixels = np.asarray(image.convert("RGBA")).astype(int)
    assert (pixels[:50, :, 3] == 0).all()
    assert (pixels[50:, :, 3] == 255).all()
    light = pixels[75, ::20, :3].sum(axis=1)
    assert (np.diff(light) > 0).all()


def test_the_items_bands_have_units_and_statistics(tmp_path: Path) -> None:
    sink, stats = produce(waves(200, 300), tmp_path)
    item = json.loads(sink.artifacts["item.json"].read_text())
    depth, heat = item["assets"]["values.tif"]["bands"]
    assert (depth["name"], depth["unit"], depth["description"]) == ("depth", "m", "Depth of the water")
    assert "unit" not in heat
    assert depth["statistics"]["mean"] == stats["values"][0]["mean"]
    assert item["assets"]["values.tif"]["nodata"] == "nan"
    assert json.loads(sink.artifacts["model.json"].read_text())["properties"]["mlm:tasks"] == ["regression"]
