"""Radiometry of STAC items: one entry for each band, Sentinel-2's processing baseline, and offsets that are applied."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import InvalidInput
from penstock.processors.base import Result
from penstock.processors.geo.read.radiometry import Declaration
from penstock.processors.geo.read.stac_bands import sentinel2_processing
from penstock.processors.geo.read.stac_item import item_notes, read_stac_item
from tests.support.geo.metadata import item
from tests.support.geo.scenes import make_model, segment, write_scene

ROUND3 = Path(__file__).parents[3] / "shared/data/round3"
SCALED = {"scale": 1e-4, "offset": -0.1, "nodata": 0}
NAMES = [{"name": "red"}, {"name": "green"}]
#: A band of Planetary Computer's `sentinel-2-l2a`, which gives no scale: the asset `B04` has one entry of `eo:bands`.
PC_RED = {
    "href": "https://sentinel2l2a01.blob.core.windows.net/sentinel2-l2/33/T/B04.tif",
    "roles": ["data"],
    "eo:bands": [{"name": "B04", "common_name": "red", "center_wavelength": 0.665}],
}
BEFORE, SINCE = Declaration(1e-4, 0.0, 0.0), Declaration(1e-4, -0.1, 0.0)


def declared(asset: dict[str, Any], index: int = 1, **properties: Any) -> Declaration | None:
    return read_stac_item(item({"red": asset}, **properties)).declared(asset["href"].rpartition("/")[2], index)


@pytest.mark.parametrize("names", ["eo:bands", "bands"])
def test_one_entry_of_raster_bands_for_several_bands_is_refused(names: str) -> None:
    asset = {"href": "https://e.example/stack.tif", names: NAMES, "raster:bands": [SCALED]}
    with pytest.raises(InvalidInput, match=r"has 2 bands in `(eo:)?bands`, but 1 in `raster:bands`"):
        declared(asset, 2)


@pytest.mark.parametrize("names", ["eo:bands", "bands"])
def test_more_entries_of_raster_bands_than_bands_are_refused_like_fewer(names: str) -> None:
    asset = {"href": "https://e.example/stack.tif", names: NAMES, "raster:bands": [SCALED] * 3}
    with pytest.raises(InvalidInput, match=r"has 2 bands in `(eo:)?bands`, but 3 in `raster:bands`.* Give each band"):
        declared(asset, 1)


def test_the_hdf_file_of_an_item_of_modis_has_more_bands_than_are_named() -> None:
    # stactools-packages/modis, MOD09A1: the reflectances come first
    listed = [{"scale": 1e-4}, {"scale": 1e-4}, {"scale": 1e-2}]
    asset = {"href": "https://e.example/a.hdf", "type": "application/x-hdf", "eo:bands": NAMES, "raster:bands": listed}
    assert declared(asset, 2) == Declaration(1e-4, 0.0, None)


@pytest.mark.parametrize("index", [1, 2])
def test_entries_and_fields_of_all_bands_are_applied_as_the_standard_says(index: int) -> None:
    href = "https://e.example/stack.tif"
    assert declared({"href": href, "eo:bands": NAMES, "raster:bands": [SCALED, SCALED]}, index) == SINCE
    shared = {"raster:scale": 1e-4, "raster:offset": -0.1, "nodata": 0}
    assert declared({"href": href, "bands": NAMES, **shared}, index) == SINCE
    assert declared({"href": href, **shared}, index) == SINCE


def test_a_band_beyond_the_listed_ones_is_refused() -> None:
    asset = {"href": "https://e.example/stack.tif", "raster:bands": [SCALED]}
    assert declared(asset) == SINCE
    with pytest.raises(InvalidInput, match=r"declares the radiometry of 1 band of stack.tif, but band 2 is needed"):
        declared(asset, 2)


def test_entries_without_radiometry_need_not_be_complete() -> None:
    asset = {"href": "https://e.example/stack.tif", "eo:bands": NAMES, "raster:bands": [{"data_type": "uint16"}]}
    assert declared(asset, 2) == Declaration()


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"s2:processing_baseline": "05.09"}, SINCE),
        ({"s2:processing_baseline": "04.00"}, SINCE),
        ({"s2:processing_baseline": "03.01"}, BEFORE),
        ({"sentinel:processing_baseline": "N0400"}, SINCE),
        ({"s2:processing_baseline": "05.09", "earthsearch:boa_offset_applied": True}, BEFORE),
        ({"s2:processing_baseline": "05.09", "earthsearch:boa_offset_applied": False}, SINCE),
        ({"sentinel:boa_offset_applied": True}, BEFORE),
        ({}, Declaration()),
        ({"s2:processing_baseline": "unknown"}, Declaration()),
        ({"s2:processing_baseline": "5.09"}, SINCE),
        ({"s2:processing_baseline": 5.09}, SINCE),
        ({"s2:processing_baseline": 5.1}, SINCE),
        ({"s2:processing_baseline": 4}, SINCE),
        ({"s2:processing_baseline": 2.14}, BEFORE),
        ({"s2:processing_baseline": 511}, SINCE),
        ({"s2:processing_baseline": 5.091}, Declaration()),
        ({"s2:processing_baseline": "5.1"}, Declaration()),
        ({"s2:processing_baseline": True}, Declaration()),
        ({"platform": "sentinel-2b", "processing:version": "2.11"}, Declaration()),
        ({"platform": "sentinel-2b", "processing:version": 2.11}, Declaration()),
        ({"platform": "sentinel-2b", "processing:version": "05.11"}, SINCE),
        ({"platform": "sentinel-2b", "processing:version": "2.0"}, Declaration()),
        ({"platform": "landsat-9", "processing:version": "05.11"}, Declaration()),
    ],
)
def test_the_processing_baseline_gives_the_radiometry_that_the_item_lacks(
    properties: dict[str, Any], expected: Declaration
) -> None:
    assert declared(PC_RED, **properties) == expected
    declares_itself = {**PC_RED, "raster:bands": [{"scale": 2e-4, "offset": 0, "nodata": 7}]}
    assert declared(declares_itself, **properties) == Declaration(2e-4, 0.0, 7.0)


@pytest.mark.parametrize(
    ("value", "said"), [("5.1", "'5.1'"), (True, "'True'"), (5.091, "'5.091'"), ("05.09", ""), (5.09, "")]
)
def test_a_baseline_that_cannot_be_read_is_noted(value: object, said: str) -> None:
    found = read_stac_item(item({"B04": PC_RED, "SCL": PC_RED}, **{"s2:processing_baseline": value}))
    note = (
        f"The `s2:processing_baseline` of the STAC item is {said}, which is no processing baseline such as 05.09. It "
        "was not used."
    )
    assert list(item_notes(found, [])) == ([note] if said else [])


@pytest.mark.parametrize("key", ["SCL", "AOT", "WVP", "visual"])
def test_the_processing_baseline_is_not_that_of_other_assets(key: str) -> None:
    bands = {"eo:bands": [{"name": f"B0{number}"} for number in (4, 3, 2)]} if key == "visual" else {}
    document = item({key: {"href": f"https://e.example/{key}.tif", **bands}}, **{"s2:processing_baseline": "05.09"})
    assert read_stac_item(document).declared(f"{key}.tif", 1) == Declaration()


def test_a_picture_of_the_item_has_no_part_in_a_band_s_radiometry() -> None:
    visual = {"href": "https://e.example/TCI.tif", "roles": ["data"], "eo:bands": [{"name": "B04"}, {"name": "B03"}]}
    found = read_stac_item(item({"visual": visual, "B04": PC_RED}, **{"s2:processing_baseline": "05.09"}))
    assert found.of_band(["B04"]) == SINCE


@pytest.mark.parametrize("name", ["boa_offset_applied", "s2:boa_offset_applied", "earthsearch:boa_offset_applied"])
@pytest.mark.parametrize(
    ("value", "expected"), [(True, True), ("true", True), ("False", False), (False, False), ("?", None), (1, None)]
)
@pytest.mark.parametrize("on_the_asset", [True, False])
def test_the_flag_of_an_applied_offset_is_found_in_every_place(
    name: str, value: object, expected: bool | None, on_the_asset: bool
) -> None:
    properties, asset = ({}, {name: value}) if on_the_asset else ({name: value}, {})
    assert sentinel2_processing(properties, asset).applied is expected
    document = {**PC_RED, "raster:bands": [SCALED], **asset}
    assert declared(document, **properties) == (BEFORE if expected else SINCE)


def mapped(tmp_path: Path, offset: int, **properties: Any) -> Result:
    """Map reflectance x 10000 of water, trees and soil plus an offset, as one-band assets of a Sentinel-2 item."""
    rng = np.random.default_rng(3)
    surfaces = np.array([[300, 200, 100, 40, 20], [200, 400, 200, 3000, 1200], [800, 1000, 2000, 3000, 4000]])
    numbers = surfaces[rng.integers(0, 3, (60, 70))] + rng.integers(0, 60, (60, 70, 5)) + offset
    names = ("B02", "B03", "B04", "B8A", "B11")
    files, assets = [], {}
    for at, name in enumerate(names):
        write_scene(tmp_path / f"{name}.tif", numbers[None, :, :, at].astype(np.uint16), nodata=0)
        files.append({"media": str(tmp_path / f"{name}.tif")})
        assets[name] = {"href": f"https://e.example/{name}.tif", "eo:bands": [{"name": name}]}
    bands = [
        {"name": name, "synonyms": [code], "mean": 0.2, "std": 0.2, "range": [0, 1]}
        for name, code in zip(("blue", "green", "red", "nir", "swir16"), names, strict=True)
    ]
    model = make_model(bands=bands, reflectance=1.0, default_radiometry=[{"dtypes": ["uint16"], "scale": 1e-4}])
    document = item(assets, **properties)
    _, result = segment(None, tmp_path / "out", model=model, files=files, stac=document, outputs=("stats",))
    return result


@pytest.mark.parametrize(("baseline", "offset", "said"), [("05.09", 1000, "-0.1"), ("02.14", 0, "0")])
def test_what_the_baseline_gives_is_used_and_noted(tmp_path: Path, baseline: str, offset: int, said: str) -> None:
    result = mapped(tmp_path, offset, **{"s2:processing_baseline": baseline})
    assert result.data is not None
    note = (
        f"The STAC item gives no scale. Scale 0.0001 and offset {said} were used, because it is of Sentinel-2 and says "
        f"that its processing baseline is {baseline}."
    )
    assert result.data["notes"] == [note]
    assert (result.data["radiometry"]["offset"], result.data["radiometry"]["source"]) == (float(said), "stac")


def test_a_flag_that_the_numbers_contradict_is_refused_or_noted(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInput, match=r"a quarter of band .* is below .* The numbers look like reflectance x 10000"
    ):
        mapped(tmp_path, 0, **{"s2:processing_baseline": "05.11", "earthsearch:boa_offset_applied": False})
    (tmp_path / "other").mkdir()
    result = mapped(tmp_path / "other", 1000, **{"s2:processing_baseline": "05.11", "boa_offset_applied": "true"})
    assert result.data is not None
    assert any("If the numbers are Sentinel-2 since processing baseline 04.00" in n for n in result.data["notes"])


def test_an_offset_that_the_baseline_does_not_have_is_noted() -> None:
    found = read_stac_item(item({"red": {**PC_RED, "raster:bands": [SCALED]}}, **{"s2:processing_baseline": "02.14"}))
    [note] = item_notes(found, [SINCE])
    assert note.startswith(
        "The STAC item declares the offset -0.1, but Sentinel-2's numbers have none in its processing"
    )


@pytest.mark.parametrize(
    ("start", "end", "noted"), [("2024-05-03", "2024-05-01", True), ("2024-05-01", "2024-05-03", False)]
)
def test_an_interval_that_ends_before_it_begins_is_noted(tmp_path: Path, start: str, end: str, noted: bool) -> None:
    times = {"start_datetime": f"{start}T00:00:00Z", "end_datetime": f"{end}T00:00:00Z"}
    path = write_scene(tmp_path / "a.tif", np.ones((1, 20, 20), np.uint8))
    document = item({"a": {"href": "https://e.example/a.tif"}}, datetime=None, **times)
    _, result = segment(path, tmp_path / "out", stac=document, outputs=("stats",))
    assert result.data is not None
    said = f"The `start_datetime` of the STAC item, {start}T00:00:00Z, is after its `end_datetime`, {end}T00:00:00Z."
    assert (said in result.data["notes"]) == noted


@pytest.mark.skipif(not ROUND3.is_dir(), reason="needs the shared data beside the checkout, ../shared/data/round3")
def test_the_stack_with_one_entry_of_raster_bands_is_refused(tmp_path: Path) -> None:
    names = ("blue", "green", "red", "nir", "swir16", "swir22")
    model = make_model(bands=[{"name": name, "mean": 0.0, "std": 1.0} for name in names])
    document = json.loads((ROUND3 / "one_raster_band.json").read_text())
    with pytest.raises(InvalidInput, match=r'has 6 bands in `eo:bands`, but 1 in `raster:bands`.*scale": 0.0001'):
        segment(ROUND3 / "stack.tif", tmp_path / "out", model=model, stac=document)
