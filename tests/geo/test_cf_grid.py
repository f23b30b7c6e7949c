"""The place of variables: coordinates, grid mappings and CRS, with the tolerances of coordinates in files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.read.products.cf_grid import Grid, find_grid
from penstock.processors.geo.read.products.variables import UnreadError, Variable, Variables
from tests.geo.test_cf import variable

UTM = {
    "grid_mapping_name": "transverse_mercator", "longitude_of_central_meridian": 15.0, "false_easting": 500_000.0,
    "latitude_of_projection_origin": 0.0, "false_northing": 0.0, "scale_factor_at_central_meridian": 0.9996,
    "semi_major_axis": 6_378_137.0, "inverse_flattening": 298.257223563,
}  # fmt: skip


def grid(x: Variable | None, y: Variable | None, mapping: dict[str, Any] | None = None, **own: Any) -> Grid:
    crs = [] if mapping is None else [variable("crs", 0, (), **mapping)]
    data = variable(
        "red", np.ones((4, 5)), ("y", "x"), **({"grid_mapping": "crs"} if mapping is not None else {}), **own
    )
    every = Variables({each.path: each for each in (data, *crs, *filter(None, (x, y)))})
    return find_grid(every, data, x, y, 5, 4)


def axis(name: str, values: Any, units: str = "m") -> Variable:
    return variable(name, np.asarray(values), (name,), units=units)


X, Y = axis("x", np.arange(5) * 10.0 + 300_005), axis("y", 5_000_035 - np.arange(4) * 10.0)
NORTH_UP = rasterio.Affine(10, 0, 300_000, 0, -10, 5_000_040)


def test_coordinates_are_the_centres_of_pixels() -> None:
    found = grid(X, Y, UTM)
    assert found.transform == NORTH_UP
    assert (found.flip_rows, found.flip_columns, found.notes) == (False, False, ())
    assert "Transverse_Mercator" in found.crs.to_wkt()


def test_rows_from_the_south_and_columns_from_the_east_are_turned_round() -> None:
    found = grid(axis("x", X.read()[::-1]), axis("y", Y.read()[::-1]), UTM)
    assert found.transform == NORTH_UP
    assert (found.flip_rows, found.flip_columns) == (True, True)


def test_kilometres_are_metres() -> None:
    assert grid(axis("x", X.read() / 1000, "km"), axis("y", Y.read() / 1000, "km"), UTM).transform.almost_equals(
        NORTH_UP
    )


def test_the_transform_that_gdal_writes_is_used_where_coordinates_are_rounded() -> None:
    text = "300000.0 10.0 0.0 5000040.0 0.0 -10.0"
    rounded = axis("x", (X.read() + 0.01).astype(np.float32))
    assert grid(rounded, Y, {**UTM, "GeoTransform": text}).transform == NORTH_UP
    elsewhere = grid(rounded, Y, {**UTM, "GeoTransform": "0 10.0 0.0 5000040.0 0.0 -10.0"})
    assert elsewhere.transform.c == pytest.approx(300_000, abs=0.1)
    assert grid(None, None, {**UTM, "GeoTransform": text}).transform == NORTH_UP


def test_longitudes_beyond_180_degrees_are_those_of_the_west() -> None:
    lon, lat = axis("x", 200 + np.arange(5) * 0.1, "degrees_east"), axis("y", 40 - np.arange(4) * 0.1, "degrees_north")
    found = grid(lon, lat)
    assert found.transform.c == pytest.approx(-160.05)
    assert found.crs.to_epsg() == 4326
    assert found.notes == (
        "The file gives longitude and latitude without a grid mapping. They were taken as those of WGS 84.",
    )


def test_a_file_without_a_crs_is_noted() -> None:
    found = grid(X, Y)
    assert found.crs is None
    assert found.notes == ("The file names no CRS (no grid mapping): the results have no CRS.",)


@pytest.mark.parametrize(("code", "value"), [("proj:epsg", 32633), ("proj:code", "EPSG:32633")])
def test_the_code_of_geozarr_is_a_crs(code: str, value: Any) -> None:
    assert grid(X, Y, **{code: value}).crs.to_epsg() == 32633


def test_the_wkt_of_a_grid_mapping_is_the_crs() -> None:
    crs = rasterio.crs.CRS.from_epsg(32633)
    assert grid(X, Y, {"crs_wkt": crs.to_wkt()}).crs == crs
    assert grid(X, Y, {"spatial_ref": crs.to_wkt(), "grid_mapping_name": "unknown"}).crs == crs


def test_a_text_that_is_no_wkt_is_no_crs_and_is_shown() -> None:
    for text in ("+init=/etc/passwd:1", "+proj=utm +zone=33 +nadgrids=/etc/passwd", "/etc/passwd"):
        found = grid(X, Y, {"spatial_ref": text})
        assert found.crs is None
        note = f"The file's `spatial_ref`, {text!r}, is no WKT and was not read: the results have no CRS."
        assert found.notes == (note,)
    lon, lat = axis("x", np.arange(5.0), "degrees_east"), axis("y", 40 - np.arange(4.0), "degrees_north")
    found = grid(lon, lat, {"crs_wkt": "UTM 33 " * 1000})
    assert found.crs.to_epsg() == 4326
    assert found.notes[0].startswith("The file's `crs_wkt`, 'UTM 33 UTM")
    assert len(found.notes[0]) < 200


@pytest.mark.parametrize(
    "words",
    [
        'EXTENSION["PROJ4","+proj=longlat +nadgrids=/etc/passwd +no_defs"]',
        'EXTENSION["PROJ4","+proj=longlat +nadgrids=@null,/etc/passwd"]',
        'EXTENSION["PROJ4_GRIDS","/etc/passwd"]',
    ],
)
def test_wkt_that_names_a_file_is_refused(words: str) -> None:
    wkt = rasterio.crs.CRS.from_epsg(4326).to_wkt().replace('AUTHORITY["EPSG","4326"]', words)
    assert words in wkt
    with pytest.raises(UnreadError, match=r"has a grid mapping .* whose `crs_wkt` names a file of its own"):
        grid(X, Y, {"crs_wkt": wkt})


def test_web_mercator_as_gdal_writes_it_names_no_file() -> None:
    wkt = rasterio.crs.CRS.from_epsg(3857).to_wkt()
    assert "+nadgrids=@null" in wkt
    assert grid(X, Y, {"crs_wkt": wkt}).crs.to_epsg() == 3857


@pytest.mark.parametrize(
    ("x", "mapping", "sentence"),
    [
        (axis("x", [0, 10, 20, 30, 41.0]), UTM, "not evenly spaced"),
        (axis("x", [0, 10, np.nan, 30, 40]), UTM, "with 5 usable values for 5 pixels"),
        (axis("x", [7, 7, 7, 7, 7.0]), UTM, "not evenly spaced"),
        (axis("x", [0, 10, 20, 30.0]), UTM, "with 4 usable values for 5 pixels"),
        (X, {"grid_mapping_name": "rotated_latitude_longitude", "grid_north_pole_latitude": 39.25,
             "grid_north_pole_longitude": -162.0}, "is on a rotated pole"),
        (X, {"grid_mapping_name": "no_such_projection"}, "has a grid mapping .* that is no usable CRS"),
        (X, {"crs_wkt": "PROJCS[broken"}, "has a grid mapping .* that is no usable CRS"),
    ],
)  # fmt: skip
def test_a_place_that_is_not_understood_is_refused(x: Variable, mapping: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UnreadError, match=sentence):
        grid(x, Y, mapping)


@pytest.mark.parametrize("name", ["a" * 100_000, "a\x1b[2J\n" * 10_000])
def test_a_long_name_is_cut_in_sentences(name: str) -> None:
    with pytest.raises(UnreadError) as refused:
        grid(X, Y, grid_mapping=name)
    assert len(str(refused.value)) < 200
    with pytest.raises(UnreadError) as refused:
        grid(axis(name, [7.0]), Y, UTM)
    assert len(str(refused.value)) < 200
    assert str(refused.value).isprintable()


def test_a_grid_mapping_that_is_not_in_the_file_is_refused() -> None:
    with pytest.raises(UnreadError, match="names the grid mapping 'crs', which is not in the file"):
        grid(X, Y, grid_mapping="crs")


def test_a_single_row_needs_a_stated_size() -> None:
    data = variable("red", np.ones((1, 5)), ("y", "x"), grid_mapping="crs")
    one = axis("y", [5_000_035.0])
    for text, stated in (("", None), ("300000.0 10.0 0.0 5000040.0 0.0 -10.0", NORTH_UP)):
        mapping = variable("crs", 0, (), **{**UTM, "GeoTransform": text})
        every = Variables({each.path: each for each in (data, X, one, mapping)})
        if stated is None:
            with pytest.raises(UnreadError, match="has a single value of y"):
                find_grid(every, data, X, one, 5, 1)
        else:
            assert find_grid(every, data, X, one, 5, 1).transform == stated
