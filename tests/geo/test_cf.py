"""CF of variables in memory: which are rasters, and their missing data, times and names."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from penstock.errors import MediaUnreadable
from penstock.processors.geo.read.products.cf import read_variables
from penstock.processors.geo.read.products.product import Product
from penstock.processors.geo.read.products.times import decode_time, is_time
from penstock.processors.geo.read.products.variables import Variable, Variables


def variable(path: str, values: Any, dimensions: tuple[str, ...], **attributes: Any) -> Variable:
    array = np.asarray(values)
    chunks = (1,) * max(0, array.ndim - 1) + array.shape[-1:]
    return Variable(path, dimensions, array.shape, array.dtype, chunks, attributes, array)


X = variable("x", np.arange(5) * 10.0 + 300_005, ("x",), standard_name="projection_x_coordinate")
Y = variable("y", 5_000_035 - np.arange(4) * 10.0, ("y",), standard_name="projection_y_coordinate")


def product(*variables: Variable, root: dict[str, Any] | None = None) -> Product:
    every = Variables({each.path: each for each in (X, Y, *variables)}, {"": root or {}})
    return read_variables(every, "NetCDF", lambda _: every)


def red(dtype: str = "u2", **attributes: Any) -> Variable:
    return variable("red", np.ones((4, 5), dtype), ("y", "x"), **attributes)


@pytest.mark.parametrize(
    ("attributes", "dtype", "nodata", "valid"),
    [
        ({}, "u2", None, [True] * 6),
        ({"_FillValue": 0}, "u2", 0, [True] * 6),
        ({"_FillValue": 0, "missing_value": np.array([3, 4])}, "u2", 0, [True, True, True, False, False, True]),
        ({"valid_min": 1, "valid_max": 4}, "u2", None, [False, True, True, True, True, False]),
        ({"valid_range": np.array([2, 4])}, "u2", None, [False, False, True, True, True, False]),
        ({"valid_range": np.array([1, -2], "i2"), "_Unsigned": "true"}, "i2", None, [False] + [True] * 5),
        ({}, "f4", None, [True] * 6),
    ],
)
def test_missing_data_are_those_of_cf(
    attributes: dict[str, Any], dtype: str, nodata: float | None, valid: list[bool]
) -> None:
    [raster] = product(red(dtype, **attributes)).rasters
    assert raster.scene.nodata == (nodata,)
    numbers = np.arange(6).astype(raster.scene.dtype)
    of_range = raster.scene.valid.of(numbers) if raster.scene.valid else np.ones(6, bool)
    assert of_range.tolist() == valid


@pytest.mark.parametrize(
    "attributes",
    [
        {"valid_range": np.array([9, 2])},
        {"valid_range": np.array([np.nan, 2.0])},
        {"valid_min": 1.0, "valid_max": float("nan")},
        {"valid_range": np.array([2, 9]), "valid_max": 1},
        {"valid_range": np.array([0, -1], "i1")},
    ],
)
@pytest.mark.parametrize("dtype", ["u1", "f4"])
def test_a_range_that_no_number_lies_in_is_refused(attributes: dict[str, Any], dtype: str) -> None:
    with pytest.raises(MediaUnreadable, match=r"red has the valid range \[.*\], in which no number lies: correct its"):
        product(red(dtype, **attributes))


def test_a_variable_with_a_long_name_is_cut_in_sentences() -> None:
    name = "red" * 50_000
    with pytest.raises(MediaUnreadable) as refused:
        product(variable(name, np.ones((4, 5)), ("y", name)))
    assert name[:80] in str(refused.value)
    assert len(str(refused.value)) < 500


def test_the_default_fill_of_netcdf_is_no_measurement() -> None:
    [raster] = product(red("f4")).rasters
    assert raster.scene.valid is not None
    assert raster.scene.valid.of(np.array([0.5, 9.96921e36], "f4")).tolist() == [True, False]
    assert raster.scene.mask is None


@pytest.mark.parametrize(
    ("dtype", "attributes", "scale", "offset", "declared"),
    [
        ("i2", {"scale_factor": 1e-4}, 1e-4, 0.0, True),
        ("i2", {"scale_factor": 1.0, "add_offset": 0.0}, 1.0, 0.0, True),
        ("i2", {"scale_factor": 0.01, "add_offset": 5.0, "units": "%"}, 1e-4, 0.05, True),
        ("f4", {"units": "1"}, 1.0, 0.0, True),
        ("f4", {"units": "percent"}, 0.01, 0.0, True),
        ("f4", {}, 1.0, 0.0, False),
        ("i2", {"units": "1"}, 1.0, 0.0, False),
    ],
)
def test_scale_and_offset_are_declared_by_attributes_or_by_a_unit(
    dtype: str, attributes: dict[str, Any], scale: float, offset: float, declared: bool
) -> None:
    [raster] = product(red(dtype, **attributes)).rasters
    [found] = raster.scene.declared(raster.scene.bands)
    assert found.scale == (pytest.approx(scale) if declared else None)
    assert found.offset == pytest.approx(offset)


def test_flags_bounds_angles_and_texts_are_no_bands() -> None:
    found = product(
        red(),
        variable("quality", np.zeros((4, 5), np.uint8), ("y", "x"), flag_meanings="clear cloud"),
        variable("lat", np.zeros((4, 5)), ("y", "x"), standard_name="latitude"),
        variable("x_bounds", np.zeros((5, 2)), ("x", "n")),
        variable("words", np.zeros((4, 5), "S1"), ("y", "x")),
        variable("x2", np.arange(5.0), ("x",), bounds="x_bounds"),
    )
    assert [raster.name for raster in found.rasters] == ["red"]
    assert found.unread == ()


def test_a_dimension_of_one_time_or_one_level_is_no_dimension() -> None:
    time = variable("time", [43_856.5], ("time",), units="days since 1900-01-01T00:00:00Z")
    height = variable("height", [2.0], ("height",))
    data = variable("red", np.ones((1, 1, 4, 5)), ("time", "height", "y", "x"), units="1")
    [raster] = product(time, height, data).rasters
    assert (raster.scene.count, raster.scene.height, raster.scene.width) == (1, 4, 5)
    assert raster.scene.acquired == datetime(2020, 1, 28, 12, tzinfo=UTC)


def test_a_scalar_time_or_an_attribute_of_the_file_gives_the_time() -> None:
    scalar = variable("time", np.float64(3600), (), units="seconds since 2020-01-01 00:00:00")
    assert product(red(), scalar).rasters[0].scene.acquired == datetime(2020, 1, 1, 1, tzinfo=UTC)
    found = product(red(), root={"time_coverage_start": "2021-02-03T04:05:06"})
    assert found.rasters[0].scene.acquired == datetime(2021, 2, 3, 4, 5, 6, tzinfo=UTC)


def test_a_band_that_is_twice_there_is_named_by_its_whole_path() -> None:
    copies = [variable(f"{group}/red", np.ones((4, 5), np.uint16), ("y", "x")) for group in ("a", "b")]
    names = [raster.scene.bands[0].name for raster in product(*copies).rasters]
    assert names == ["a/red", "b/red"]


def test_a_file_without_rasters_is_refused_with_the_reason() -> None:
    with pytest.raises(MediaUnreadable, match="The NetCDF file is no scene: it has no variables of numbers"):
        product()
    bad = variable("red", np.ones((4, 5)), ("u", "v"))
    with pytest.raises(MediaUnreadable, match=r"red has no coordinates of rows and columns .*u \(4\), v \(5\)"):
        product(bad)


@pytest.mark.parametrize(
    ("units", "number", "expected"),
    [
        ("days since 1970-01-01", 1.5, datetime(1970, 1, 2, 12, tzinfo=UTC)),
        ("hours since 2000-01-01 06:00", 2, datetime(2000, 1, 1, 8, tzinfo=UTC)),
        ("seconds since 2000-1-1 00:00:00 UTC", 1, datetime(2000, 1, 1, 0, 0, 1, tzinfo=UTC)),
        ("minutes since 2000-01-01T00:00:00+01:00", 0, datetime(1999, 12, 31, 23, tzinfo=UTC)),
        ("milliseconds since 2000-01-01", 1500, datetime(2000, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)),
        ("months since 2000-01-01", 1, None),
        ("days since 2000-13-01", 1, None),
        ("days since 2000-01-01", 1e12, None),
        ("m", 1, None),
    ],
)
def test_times_are_decoded_with_their_units(units: str, number: float, expected: datetime | None) -> None:
    assert decode_time(number, units, "") == expected
    assert decode_time(number, units, "noleap") is None
    assert is_time(units) == units.count("since")


def test_times_of_numpy_are_times() -> None:
    assert decode_time(np.datetime64("2020-01-02T03:00", "ns"), "", "") == datetime(2020, 1, 2, 3, tzinfo=UTC)
    assert decode_time(np.datetime64("NaT", "ns"), "", "") is None
