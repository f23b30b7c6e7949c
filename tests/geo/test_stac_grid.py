"""The Projection extension of STAC items: used where a file has no georeference, refused where it contradicts one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyproj import CRS

from penstock.errors import InvalidInput, MediaUnreadable
from penstock.processors.base import Result
from penstock.processors.geo.read.gdal import rasterio, without_georeference
from tests.support.geo.metadata import item
from tests.support.geo.scenes import NORTH_UP, pattern, segment, write_scene

CODE = {"proj:code": "EPSG:32633"}
#: NORTH_UP in the order of the Projection extension: row by row, six numbers or nine.
SIX = [30.0, 0.0, 500_000.0, 0.0, -30.0, 5_000_000.0]
BARE: dict[str, Any] = {"crs": None, "transform": None}
WKT = str(rasterio.crs.CRS.from_epsg(32633).to_wkt())
PROJJSON = CRS.from_epsg(32633).to_json_dict()
#: Bounds of 40 rows and 50 columns of NORTH_UP, in two and in three dimensions.
BOX = [500_000, 4_998_800, 501_500, 5_000_000]
BOX_3D = [*BOX[:2], 0, *BOX[2:], 90]


def mapped(
    tmp_path: Path, *, asset: dict[str, Any] | None = None, profile: dict[str, Any] | None = None, **properties: Any
) -> tuple[Any, Result]:
    """Map a scene of 40 x 50 pixels that is an asset of an item; return the opened map's profile and the result."""
    path = write_scene(tmp_path / "scene.tif", pattern(40, 50), **(profile or {}))
    document = item({"data": {"href": "https://e.example/scene.tif", **(asset or {})}}, **properties)
    sink, result = segment(path, tmp_path / "out", stac=document, outputs=("classes", "stats"))
    with rasterio.open(sink.artifacts["classes.tif"]) as file:
        return file, result


@pytest.mark.parametrize(
    "fields",
    [
        CODE | {"proj:transform": SIX},
        {"proj:epsg": 32633, "proj:transform": [*SIX, 0, 0, 1], "proj:shape": [40, 50]},
        {"proj:epsg": None, "proj:wkt2": WKT, "proj:transform": SIX},
        {"proj:code": None, "proj:projjson": PROJJSON, "proj:transform": SIX},
        {"proj:code": "EPSG:32633", "proj:epsg": 32633, "proj:wkt2": WKT, "proj:transform": SIX},
    ],
)
@pytest.mark.parametrize("on_the_asset", [True, False])
def test_the_item_places_a_file_without_a_georeference(
    tmp_path: Path, fields: dict[str, Any], on_the_asset: bool
) -> None:
    given: dict[str, Any] = {"asset": fields} if on_the_asset else fields
    file, result = mapped(tmp_path, profile=BARE, **given)
    assert (file.crs.to_epsg(), file.transform) == (32633, NORTH_UP)
    assert result.data is not None
    [note] = result.data["notes"]
    assert note.startswith("The file has no CRS (")
    assert note.endswith(" of its own: the STAC item's was used.")


def test_a_file_with_a_transform_alone_gets_the_item_s_crs(tmp_path: Path) -> None:
    file, _ = mapped(tmp_path, profile={"crs": None}, **CODE)
    assert (file.crs.to_epsg(), file.transform) == (32633, NORTH_UP)


@pytest.mark.parametrize(
    ("on_the_asset", "on_the_item"),
    [
        ({}, {"proj:bbox": BOX, "proj:shape": [40, 50]}),
        ({}, {"proj:bbox": BOX_3D, "proj:shape": [40, 50], "proj:transform": None}),
        ({"proj:bbox": BOX, "proj:shape": [40, 50]}, {"proj:bbox": [0, 0, 1, 1], "proj:shape": [1, 1]}),
        ({"proj:shape": [40, 50]}, {"proj:bbox": BOX, "proj:shape": [80, 100]}),
    ],
)
def test_bounds_and_shape_place_a_file_and_are_noted(
    tmp_path: Path, on_the_asset: dict[str, Any], on_the_item: dict[str, Any]
) -> None:
    file, result = mapped(tmp_path, profile=BARE, asset=on_the_asset, **CODE, **on_the_item)
    assert (file.crs.to_epsg(), file.transform) == (32633, NORTH_UP)
    assert result.data is not None
    [note] = result.data["notes"]
    assert note == (
        "The file has no CRS (EPSG:32633) and no transform (30, 0, 500000, 0, -30, 5000000, by `proj:bbox` and "
        "`proj:shape`) of its own: the STAC item's was used."
    )


def test_rounded_bounds_do_not_contradict_the_file_s_own_place(tmp_path: Path) -> None:
    rounded = [value + 100 for value in BOX]
    file, result = mapped(tmp_path, **CODE, **{"proj:bbox": rounded, "proj:shape": [40, 50]})
    assert file.transform == NORTH_UP
    assert result.data is not None
    assert result.data["notes"] == []


@pytest.mark.parametrize("fields", [CODE, CODE | {"proj:bbox": BOX}, CODE | {"proj:shape": [40, 50]}])
def test_a_crs_without_a_place_is_not_written_to_the_map(tmp_path: Path, fields: dict[str, Any]) -> None:
    path = write_scene(tmp_path / "scene.tif", pattern(40, 50), **BARE)
    document = item({"data": {"href": "https://e.example/scene.tif"}}, **fields)
    sink, result = segment(path, tmp_path / "out", stac=document, outputs=("classes", "stats"))
    with without_georeference(), rasterio.open(sink.artifacts["classes.tif"]) as file:
        assert file.crs is None
    assert result.data is not None
    [note] = result.data["notes"]
    assert note.endswith("neither `proj:transform` nor `proj:bbox` and `proj:shape`. The results have no georeference.")


@pytest.mark.parametrize(
    "other", [{"proj:epsg": 32632}, {"proj:wkt2": CRS.from_epsg(32632).to_wkt()},
              {"proj:projjson": CRS.from_epsg(32632).to_json_dict()}]
)  # fmt: skip
def test_an_item_with_two_crs_is_refused_where_one_is_needed(tmp_path: Path, other: dict[str, Any]) -> None:
    with pytest.raises(MediaUnreadable, match=r"contradicts itself: proj:code is EPSG:32633 and .* is EPSG:32632"):
        mapped(tmp_path, profile=BARE, **CODE, **other, **{"proj:transform": SIX})
    file, _ = mapped(tmp_path, **CODE, **other)
    assert file.crs.to_epsg() == 32633


def test_the_asset_comes_before_the_item(tmp_path: Path) -> None:
    file, _ = mapped(tmp_path, profile=BARE, asset=CODE | {"proj:transform": SIX}, **{"proj:epsg": 4326})
    assert file.crs.to_epsg() == 32633


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"proj:code": "EPSG:32634"}, "its CRS is EPSG:32634, but the file's is EPSG:32633"),
        ({"proj:epsg": 4326}, "its CRS is EPSG:4326"),
        (
            {"proj:transform": [30, 0, 500_060, 0, -30, 5_000_000], "proj:shape": [40, 50]},
            "`proj:transform` is 30, 0, 500060, 0, -30, 5000000, but the file's is 30, 0, 500000, 0, -30, 5000000",
        ),
    ],
)
def test_a_contradiction_is_refused(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        mapped(tmp_path, **fields)
    assert said in refused.value.detail
    assert refused.value.detail.startswith("The STAC item contradicts the file: ")
    assert [issue.pointer for issue in refused.value.errors] == ["/input/stac"]


def test_the_shape_of_a_file_without_a_georeference_must_be_the_item_s(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"`proj:shape` is \[80, 100\], but the file has 40 rows and 50 columns"):
        mapped(tmp_path, profile=BARE, **CODE, **{"proj:transform": SIX, "proj:shape": [80, 100]})


@pytest.mark.parametrize(
    "fields",
    [
        CODE,
        {"proj:wkt2": WKT},
        {"proj:code": "EPSG:32633", "proj:transform": SIX, "proj:shape": [40, 50]},
        {"proj:transform": [10, 0, 500_000, 0, -10, 5_000_000], "proj:shape": [120, 150]},
        {"proj:transform": "unknown"},
        {"proj:wkt2": 'BOUNDCRS[PARAMETERFILE["grid","/etc/passwd"]]'},
    ],
    ids=["code", "wkt", "transform", "that of a finer asset", "no transform", "WKT that names a file"],
)
def test_a_file_keeps_its_own_georeference(tmp_path: Path, fields: dict[str, Any]) -> None:
    file, result = mapped(tmp_path, **fields)
    assert (file.crs.to_epsg(), file.transform) == (32633, NORTH_UP)
    assert result.data is not None
    assert result.data["notes"] == []


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"proj:transform": [1, 2]}, "proj:transform"),
        ({**CODE, "proj:transform": [0, 0, 0, 0, 0, 0]}, "proj:transform"),
        ({**CODE, "proj:transform": [1e200, 0, 0, 0, -1e200, 0]}, "proj:transform"),
        ({"proj:code": "+proj=longlat +nadgrids=/x"}, "proj:code"),
        ({"proj:epsg": 999_999}, "proj:epsg"),
        ({"proj:projjson": {"type": "ProjectedCRS"}}, "proj:projjson"),
        ({"proj:projjson": "EPSG:32633"}, "proj:projjson"),
        ({"proj:projjson": ["EPSG:32633"]}, "proj:projjson"),
        ({**CODE, "proj:bbox": [501_500, 4_998_800, 500_000, 5_000_000], "proj:shape": [40, 50]}, "proj:bbox"),
        ({**CODE, "proj:bbox": BOX[:3], "proj:shape": [40, 50]}, "proj:bbox"),
        ({**CODE, "proj:bbox": BOX, "proj:shape": [0, 50]}, "proj:bbox"),
        ({"proj:wkt2": 'BOUNDCRS[PARAMETERFILE["grid","/etc/passwd"]]'}, "proj:wkt2"),
    ],
)
def test_an_unusable_field_is_named_where_it_is_needed(tmp_path: Path, fields: dict[str, Any], name: str) -> None:
    with pytest.raises(MediaUnreadable, match=f"The STAC item's {name} is .*, which cannot be used"):
        mapped(tmp_path, profile=BARE, **fields)


def test_the_transform_of_an_item_is_not_that_of_an_asset_with_another_shape(tmp_path: Path) -> None:
    fine: dict[str, Any] = {"proj:transform": [10, 0, 500_000, 0, -10, 5_000_000], "proj:shape": [120, 150]}
    file, _ = mapped(tmp_path, asset={"proj:shape": [40, 50]}, **CODE, **fine)
    assert (file.crs.to_epsg(), file.transform) == (32633, NORTH_UP)


def test_a_scene_that_is_no_asset_of_the_item_is_left_as_it_is(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "mine.tif", pattern(40, 50), **BARE)
    document = item({"data": {"href": "https://e.example/scene.tif", "eo:bands": [{"name": "grey"}]}}, **CODE)
    sink, _ = segment(path, tmp_path / "out", stac=document, outputs=("classes",))
    with without_georeference(), rasterio.open(sink.artifacts["classes.tif"]) as file:
        assert file.crs is None


#: NORTH_UP as GDAL writes it beside a file, and moved by 100 pixels.
AUX = f"<PAMDataset><SRS>{WKT}</SRS><GeoTransform>{{west}},30,0,5000000,0,-30</GeoTransform></PAMDataset>"
WORLD = "30\n0\n0\n-30\n{west}\n4999985\n"


def beside(tmp_path: Path, text: str, **fields: Any) -> tuple[Any, list[str]]:
    """Map a file without a georeference with a file beside it; return the map's profile and the notes."""
    path = write_scene(tmp_path / "scene.tif", pattern(40, 50), **BARE)
    (tmp_path / "beside").write_text(text)
    document = item({"data": {"href": "https://e.example/scene.tif"}}, **fields)
    given = {"stac": document, "beside": [str(tmp_path / "beside")], "outputs": ("classes", "stats")}
    sink, result = segment(path, tmp_path / "out", **given)
    assert result.data is not None
    with rasterio.open(sink.artifacts["classes.tif"]) as file:
        return file, result.data["notes"]


@pytest.mark.parametrize(
    ("text", "taken"), [(AUX.format(west=503_000), ""), (WORLD.format(west=503_015), "CRS (EPSG:32633)")]
)
def test_the_files_beside_a_scene_place_it_before_the_item(tmp_path: Path, text: str, taken: str) -> None:
    file, notes = beside(tmp_path, text, **CODE, **{"proj:transform": SIX})
    assert (file.crs.to_epsg(), file.transform.c, file.transform.f) == (32633, 503_000, 5_000_000)
    assert notes == ([f"The file has no {taken} of its own: the STAC item's was used."] if taken else [])


@pytest.mark.parametrize("text", [AUX.format(west=503_000), WORLD.format(west=503_015)])
def test_an_item_that_contradicts_the_files_beside_a_scene_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidInput, match=r"The STAC item contradicts the file: `proj:transform` is 30, 0, 500000"):
        beside(tmp_path, text, **CODE, **{"proj:transform": SIX, "proj:shape": [40, 50]})


def test_a_field_of_the_item_that_cannot_be_used_is_not_needed_beside_good_metadata(tmp_path: Path) -> None:
    file, notes = beside(tmp_path, AUX.format(west=500_000), **{"proj:transform": [1, 2]})
    assert (file.crs.to_epsg(), file.transform, notes) == (32633, NORTH_UP, [])
