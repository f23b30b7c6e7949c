"""Product metadata is interpreted as defined by its producers; other documents are rejected."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InputError, InvalidInput, MediaTooLarge, MediaUnreadable
from penstock.processors.geo.read.radiometry import Declaration
from penstock.processors.geo.read.sidecar import read_sidecar
from penstock.processors.geo.read.stac_item import read_stac_item
from tests.support.geo.metadata import item, landsat, sentinel2


def write(path: Path, document: Any) -> Path:
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


@pytest.mark.parametrize("level", ["1C", "2A"])
def test_sentinel_2_since_baseline_4_has_an_offset_and_0_for_no_data(level: str, tmp_path: Path) -> None:
    sidecar = read_sidecar(write(tmp_path / "m.xml", sentinel2(level)))
    assert sidecar.of(["B02"]) == sidecar.of(["anything"]) == Declaration(1e-4, -0.1, 0)


def test_sentinel_2_before_baseline_4_has_none(tmp_path: Path) -> None:
    sidecar = read_sidecar(write(tmp_path / "m.xml", sentinel2(baseline="02.14", offsets={})))
    assert sidecar.of(["B8A"]) == Declaration(1e-4, 0.0, 0)


def test_sentinel_2_bands_with_offsets_of_their_own_are_told_apart_by_name(tmp_path: Path) -> None:
    offsets = {**dict.fromkeys(range(13), -1000), 8: -500, 12: -200}
    sidecar = read_sidecar(write(tmp_path / "m.xml", sentinel2(offsets=offsets)))
    assert [sidecar.of([name]).offset for name in ("B08", "b8a", "B12", "B9")] == [-0.1, -0.05, -0.02, -0.1]
    assert sidecar.of(["nir", "B8A"]).offset == -0.05
    with pytest.raises(InvalidInput, match="no band named nir, and its bands have different radiometry: b1, b2"):
        sidecar.of(["nir"])


def test_landsat_level_2_is_surface_reflectance_already(tmp_path: Path) -> None:
    bands = dict.fromkeys(range(1, 8), ("2.75e-05", "-0.2"))
    sidecar = read_sidecar(write(tmp_path / "m.json", landsat("L2SP", bands, sun="12")))
    assert sidecar.of(["SR_B4"]) == sidecar.of(["red"]) == Declaration(2.75e-5, -0.2, 0)


def test_landsat_level_1_is_divided_by_the_sine_of_the_suns_elevation(tmp_path: Path) -> None:
    bands = dict.fromkeys(range(1, 10), ("2.0000E-05", "-0.100000"))
    found = read_sidecar(write(tmp_path / "m.json", landsat("L1TP", bands, sun="30.0"))).of(["B4"])
    assert (found.scale, found.offset) == (pytest.approx(4e-5), pytest.approx(-0.2))  # sin 30° = 1/2


@pytest.mark.parametrize(
    ("spacecraft", "red"), [("LANDSAT_7", 3), ("LANDSAT_5", 3), ("LANDSAT_8", 4), ("LANDSAT_9", 4), ("LANDSAT_1", 5)]
)
def test_landsat_bands_go_by_number_or_by_the_common_name_that_the_sensor_gives_it(
    spacecraft: str, red: int, tmp_path: Path
) -> None:
    bands = {n: (f"{n}e-3", "0") for n in (1, 2, 3, 4, 5, 7)}
    sidecar = read_sidecar(write(tmp_path / "m.json", landsat("L1TP", bands, spacecraft=spacecraft, sun="90")))
    assert sidecar.of(["red"]).scale == sidecar.of([f"B{red}"]).scale == pytest.approx(red * 1e-3)
    with pytest.raises(InvalidInput, match=r"Name the bands of the files with `files\[\]\.bands`"):
        sidecar.of(["thermal"])


BOMB = '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "ha">]><Level-1C_User_Product>&a;</Level-1C_User_Product>'


@pytest.mark.parametrize(
    ("document", "error", "sentence"),
    [
        ("", MediaUnreadable, "unknown format; supported are MTD_MSIL1C.xml"),
        ("<html></html>", MediaUnreadable, "unknown format"),
        ("<Level-1C_User_Product>", MediaUnreadable, "not XML: no element found"),
        (BOMB, MediaUnreadable, "document type declaration, which is not allowed"),
        (sentinel2(offsets={}), MediaUnreadable, "baseline 05.10 with BOA_QUANTIFICATION_VALUE 10000 and 0 values"),
        (sentinel2(offsets={40: 1}), MediaUnreadable, "bands that Sentinel-2 does not have"),
        (sentinel2().replace("10000", "many"), MediaUnreadable, "BOA_QUANTIFICATION_VALUE is 'many', not a number"),
        (sentinel2().replace("10000", "0"), MediaUnreadable, "incomplete"),
        (sentinel2().replace("PROCESSING_BASELINE", "X"), MediaUnreadable, "has no PROCESSING_BASELINE"),
        ("{", MediaUnreadable, "not JSON"),
        ('{"a":' * 100_000, MediaUnreadable, "nested too deeply"),
        ({}, MediaUnreadable, "unknown format"),
        ({"LANDSAT_METADATA_FILE": {}}, MediaUnreadable, "has no IMAGE_ATTRIBUTES"),
        (landsat("L2SP", {}), MediaUnreadable, "has no REFLECTANCE_MULT_BAND_x"),
        (landsat("L1TP", {2: ("1e-5", "x")}), MediaUnreadable, "REFLECTANCE_ADD_BAND_2 is 'x', not a number"),
        (landsat("L1TP", {2: ("1e-5", "0")}, sun="-3"), InvalidInput, "sun elevation is below the horizon"),
        (landsat("L1TP", {2: ("1e-5", "0")}, sun="inf"), MediaUnreadable, "SUN_ELEVATION is inf, not a finite number"),
    ],
)
def test_other_sidecars_are_refused_with_the_reason(
    document: Any, error: type[InputError], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=sentence):
        read_sidecar(write(tmp_path / "m", document))


def test_sidecars_that_are_no_text_or_huge_are_refused(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"<\xff\xfe")
    with pytest.raises(MediaUnreadable, match="not UTF-8"):
        read_sidecar(tmp_path / "m")
    with (tmp_path / "m").open("wb") as file:
        file.truncate(17 * 2**20)
    with pytest.raises(MediaTooLarge, match="17,825,792 bytes"):
        read_sidecar(tmp_path / "m")


EARTH_SEARCH = {"nodata": 0, "data_type": "uint16", "scale": 0.0001, "offset": -0.1}
RED = {
    "href": "https://x/a/B04.tif?sig=1",
    "eo:bands": [{"name": "red", "common_name": "red"}],
    "raster:bands": [EARTH_SEARCH],
}


def test_stac_1_0_and_1_1_say_the_same_in_two_ways(tmp_path: Path) -> None:
    new = {
        "href": "s3://bucket/B04.tif",
        "nodata": 0,
        "bands": [{"name": "red", "eo:common_name": "red", "raster:scale": 0.0001, "raster:offset": -0.1}],
    }
    for asset in (RED, new):
        found = read_stac_item(write(tmp_path / "i", item({"B04": asset}))).of_file("media://7/B04.tif")
        assert [(band.names, band.declared) for band in found] == [(("red", "B04"), Declaration(1e-4, -0.1, 0))]


def test_bands_of_one_asset_come_in_order_with_what_they_share(tmp_path: Path) -> None:
    asset = {
        "href": "stack.tif",
        "raster:scale": 0.5,
        "bands": [{"name": "a"}, {"name": "b", "raster:scale": 2, "nodata": "nan"}],
    }
    found = read_stac_item(write(tmp_path / "i", item({"data": asset}))).of_file("https://h/p/stack.tif#x")
    assert [band.names for band in found] == [("a",), ("b",)]
    assert found[0].declared == Declaration(0.5, 0.0, None)
    assert (found[1].declared.scale, math.isnan(found[1].declared.nodata or 0)) == (2, True)


@pytest.mark.parametrize("name", ["earthsearch:boa_offset_applied", "sentinel:boa_offset_applied"])
@pytest.mark.parametrize(("applied", "offset"), [(True, 0.0), (False, -0.1)])
def test_an_offset_that_the_item_says_is_in_the_numbers_is_not_added_again(
    name: str, applied: bool, offset: float, tmp_path: Path
) -> None:
    found = read_stac_item(write(tmp_path / "i", item({"red": RED}, **{name: applied}))).of_file("B04.tif")
    assert found[0].declared == Declaration(1e-4, offset, 0)


def test_a_file_that_is_no_asset_goes_by_its_bands_names(tmp_path: Path) -> None:
    twin = {**RED, "href": "https://x/a/B04.jp2"}
    other = {**RED, "href": "B05.tif", "eo:bands": [{"name": "rededge1"}], "raster:bands": [{"scale": 7}]}
    found = read_stac_item(write(tmp_path / "i", item({"red": RED, "red-jp2": twin, "rededge1": other})))
    assert found.of_file("media://1/mine.tif") == ()
    assert found.of_band(["mine", "RED"]) == Declaration(1e-4, -0.1, 0)
    with pytest.raises(InvalidInput, match=r"no radiometry for the band named swir22: name the file like .*B04.tif"):
        found.of_band(["swir22"])
    with pytest.raises(InvalidInput, match="has different radiometry for the band named red or rededge1"):
        found.of_band(["red", "rededge1"])


def test_a_bands_synonyms_count_in_their_order_where_its_own_names_are_missing(tmp_path: Path) -> None:
    def asset(name: str, scale: float) -> dict[str, Any]:
        return {"href": f"{name}.tif", "eo:bands": [{"name": name}], "raster:bands": [{"scale": scale}]}

    assets = {name: asset(name, scale) for name, scale in (("nir08", 2), ("B08", 3), ("red", 5))}
    found = read_stac_item(write(tmp_path / "i", item(assets)))
    synonyms = ("nir", "nir08", "B08")
    assert found.of_band(["nir"], synonyms) == found.of_band([], synonyms) == Declaration(2.0)
    assert found.of_band(["B08"], synonyms) == Declaration(3.0)
    with pytest.raises(InvalidInput, match=r"no radiometry for the band named swir22"):
        found.of_band(["swir22"], ["B12"])


def test_names_of_files_are_compared_as_uploads_write_them(tmp_path: Path) -> None:
    found = read_stac_item(write(tmp_path / "i", item({"red": {**RED, "href": "../my%20scene/r%C3%A9d 4.tif"}})))
    assert found.of_file("media://u/red_4.tif")


@pytest.mark.parametrize(
    ("document", "error", "sentence"),
    [
        ([], MediaUnreadable, "not a JSON object"),
        ({"type": "Collection", "assets": {}}, MediaUnreadable, "`properties` and `assets`"),
        (item({"red": {**RED, "raster:bands": [{"scale": "x"}]}}), MediaUnreadable, "scale of the asset red is 'x'"),
    ],
)
def test_other_items_are_refused_with_the_reason(
    document: Any, error: type[InputError], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=sentence):
        read_stac_item(write(tmp_path / "i", document))


def test_assets_that_are_no_rasters_do_no_harm(tmp_path: Path) -> None:
    odd = {
        "thumbnail": {"href": "t.jpg"},
        "none": None,
        "bare": {"title": "x"},
        "metadata": {"href": "m.xml", "bands": "x"},
    }
    assert read_stac_item(write(tmp_path / "i", item({**odd, "red": RED}))).of_file("B04.tif")


def test_assets_of_one_file_name_must_say_the_same(tmp_path: Path) -> None:
    coarse = {**RED, "href": "R20m/B04.tif"}
    same = read_stac_item(write(tmp_path / "same", item({"red": RED, "red_20m": coarse})))
    assert same.of_file("B04.tif")[0].declared == Declaration(1e-4, -0.1, 0)
    other = read_stac_item(
        write(tmp_path / "other", item({"red": RED, "red_20m": {**coarse, "raster:bands": [{"scale": 1}]}}))
    )
    with pytest.raises(InvalidInput, match="has several assets named B04"):
        other.of_file("B04.tif")
