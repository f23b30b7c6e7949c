"""Pixels without data in the scene have no data in the map, for every way of marking them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from penstock.processors.base import Result
from penstock.processors.geo.options import NODATA
from penstock.processors.geo.read.gdal import rasterio
from tests.support.geo.scenes import GREY, make_model, pattern, read, segment, write_scene

HOLE = (slice(20, 90), slice(37, 61))
MODEL = make_model(halo_px=8, stride_px=4, tile_px=32)


def check(sink: Any, numbers: npt.NDArray[Any]) -> None:
    """Compare all outputs with the numbers of a scene that contains `HOLE`."""
    expected = numbers[0].copy()
    expected[HOLE] = 0
    expected = expected.astype(np.int64) % 5
    expected[HOLE] = NODATA
    np.testing.assert_array_equal(read(sink.artifacts["classes.tif"])[0], expected)
    probability = read(sink.artifacts["probability.tif"])
    np.testing.assert_array_equal(probability == NODATA, np.broadcast_to(expected == NODATA, probability.shape))
    np.testing.assert_array_equal(np.asarray(Image.open(sink.artifacts["preview.png"])), expected)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32"])
@pytest.mark.parametrize("nodata", [0, -9999, float("nan"), -3.4e38])
def test_the_files_nodata_value(dtype: str, nodata: float, tmp_path: Path) -> None:
    if dtype != "float32" and not (nodata == 0 or (nodata == -9999 and dtype == "int16")):
        nodata = 255 if dtype == "uint8" else 0
    numbers = pattern(131, 97).astype(dtype)
    with np.errstate(over="ignore"):
        numbers[0][HOLE] = nodata
    sink, _ = segment(write_scene(tmp_path / "s.tif", numbers, nodata=nodata), tmp_path / "out", model=MODEL)
    check(sink, numbers)


def test_nan_without_a_nodata_value_and_infinity(tmp_path: Path) -> None:
    numbers = pattern(131, 97).astype(np.float32)
    numbers[0][HOLE] = np.nan
    numbers[0][HOLE][3] = np.inf
    sink, result = segment(write_scene(tmp_path / "s.tif", numbers), tmp_path / "out", model=MODEL)
    check(sink, numbers)
    assert masked_by(result) == "not finite"


def masked_by(result: Result) -> Any:
    """Return the statistics' entries on missing data."""
    assert result.data is not None
    return result.data["radiometry"]["mask"]


def test_a_scene_that_nothing_masks_says_so(tmp_path: Path) -> None:
    _, result = segment(write_scene(tmp_path / "s.tif", pattern(131, 97)), tmp_path / "out", model=MODEL)
    assert masked_by(result) == "none"


def test_the_requests_nodata_value_replaces_the_files(tmp_path: Path) -> None:
    numbers = pattern(131, 97)
    numbers[0][HOLE] = 250
    path = write_scene(tmp_path / "s.tif", numbers, nodata=7)
    sink, result = segment(path, tmp_path / "out", model=MODEL, radiometry={"nodata": 250})
    check(sink, numbers)
    assert result.data is not None
    assert result.data["radiometry"]["nodata"] == 250
    assert result.data["radiometry"]["nodata_source"] == "request"


@pytest.mark.parametrize("nodata", [None, 255])
def test_alpha_even_beside_a_nodata_value(nodata: int | None, tmp_path: Path) -> None:
    numbers = np.concatenate([pattern(131, 97), np.full((1, 131, 97), 255, np.uint8)])
    numbers[1][HOLE] = 0
    path = write_scene(tmp_path / "s.tif", numbers, alpha="YES")
    if nodata is not None:
        with rasterio.open(path, "r+") as file:
            file.nodata = nodata
    sink, result = segment(path, tmp_path / "out", model=MODEL)
    check(sink, numbers)
    assert masked_by(result) == ("alpha" if nodata is None else "nodata, alpha")


def test_an_internal_mask(tmp_path: Path) -> None:
    numbers = pattern(131, 97)
    path = write_scene(tmp_path / "s.tif", numbers)
    mask = np.full((131, 97), 255, np.uint8)
    mask[HOLE] = 0
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), rasterio.open(path, "r+") as file:
        file.write_mask(mask)
    sink, result = segment(path, tmp_path / "out", model=MODEL)
    check(sink, numbers)
    assert masked_by(result) == "internal mask"


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_pixel_that_lacks_data_in_any_needed_band(missing: int, tmp_path: Path) -> None:
    numbers = np.repeat(pattern(131, 97), 4, axis=0)
    numbers[missing][HOLE] = 0
    numbers[3, :50] = 0
    bands = [{**GREY[0], "name": name} for name in "abc"]
    path = write_scene(tmp_path / "s.tif", numbers, nodata=0, descriptions="abcd")
    model = make_model(bands=bands, halo_px=8, stride_px=4, tile_px=32)
    sink, _ = segment(path, tmp_path / "out", model=model)
    check(sink, numbers[[0 if missing else 1]])


def test_class_0_is_data(tmp_path: Path) -> None:
    sink, _ = segment(write_scene(tmp_path / "s.tif", np.full((1, 90, 90), 5, np.uint8)), tmp_path / "out")
    with rasterio.open(sink.artifacts["classes.tif"]) as file:
        masked = file.read(1, masked=True)
        assert file.nodata == NODATA
    assert masked.count() == 8100
    assert (masked == 0).all()
