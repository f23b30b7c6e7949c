"""The polygon files match the map in both formats: areas, positions, attributes."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio.features
import shapely
from pydantic import ValidationError
from pyproj import Geod

from penstock.processors.geo.options import NODATA
from penstock.processors.geo.read.gdal import pyogrio, rasterio
from penstock.processors.geo.request import SegmentationRequest
from tests.support.geo.scenes import NORTH_UP, Folder, read, segment, write_scene

Affine = rasterio.Affine
#: The files and the data of a place of `PLACES`.
Made = Callable[[str], tuple[Folder, dict[str, Any]]]
PLACES: dict[str, dict[str, Any]] = {
    "utm": {"crs": "EPSG:32633", "transform": NORTH_UP},
    "geographic": {"crs": "EPSG:4326", "transform": Affine(0.01, 0, 20, 0, -0.01, 60)},
    "antimeridian": {"crs": "EPSG:4326", "transform": Affine(0.01, 0, 179.3, 0, -0.01, -17)},
    "south-up": {"crs": "EPSG:4326", "transform": Affine(0.01, 0, 20, 0, 0.01, -10)},
    "rotated": {"crs": "EPSG:32633", "transform": Affine(17.3, 5.1, 500_100.7, 10.3, -8.66, 5_000_200.9)},
    "web Mercator": {"crs": "EPSG:3857", "transform": Affine(100, 0, 1_200_000, 0, -100, 8_400_000)},
    "feet": {"crs": "EPSG:2263", "transform": Affine(10, 0, 987_654, 0, -10, 200_000)},
    "pole": {"crs": "EPSG:3413", "transform": Affine(1e4, 0, -7e5, 0, -1e4, 6e5)},
}


def blobs() -> np.ndarray:
    """Return the numbers of a scene: five classes in patches of 7 x 9 pixels, and a corner without data."""
    coarse = np.random.default_rng(3).integers(1, 6, (20, 20), np.uint8)
    numbers = np.kron(coarse, np.ones((7, 9), np.uint8))[:120, :150][None]
    numbers[:, :30, :40] = 0
    return numbers


def polygons_of(folder: Path, **request: Any) -> tuple[Folder, dict[str, Any]]:
    place = request.pop("place", PLACES["utm"])
    path = write_scene(folder / "s.tif", blobs(), nodata=0, **place)
    sink, result = segment(path, folder / "out", outputs=("classes", "polygons", "stats"), **request)
    assert result.data is not None
    return sink, dict(result.data)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Return the polygons of a place, made once."""
    return cache(lambda place: polygons_of(tmp_path_factory.mktemp("place"), place=PLACES[place]))


def flatgeobuf(sink: Folder) -> tuple[dict[str, Any], np.ndarray, dict[str, np.ndarray]]:
    """Return the file's metadata, polygons and columns."""
    meta, _, wkb, columns = pyogrio.raw.read(sink.artifacts["polygons.fgb"])
    return meta, shapely.from_wkb(wkb), dict(zip(meta["fields"].tolist(), columns, strict=True))


@pytest.mark.parametrize("name", PLACES)
def test_areas_are_those_of_the_map(name: str, made: Made) -> None:
    place, (sink, stats) = PLACES[name], made(name)
    ids = read(sink.artifacts["classes.tif"])[0]
    meta, polygons, columns = flatgeobuf(sink)
    assert rasterio.CRS.from_user_input(meta["crs"]) == rasterio.CRS.from_user_input(place["crs"])
    pixel = abs(place["transform"].determinant)
    assert stats["polygons"] == {"count": len(polygons), "left_out": 0, "connectedness": 4, "notes": []}
    for label in stats["classes"]:
        mine = columns["class"] == label["id"]
        assert set(columns["name"][mine]) == {label["name"]}
        assert columns["pixels"][mine].sum() == (ids == label["id"]).sum() == label["pixels"]
        np.testing.assert_allclose(shapely.area(polygons[mine]), columns["pixels"][mine] * pixel, rtol=1e-6)
        assert columns["area_m2"][mine].sum() == pytest.approx(label["area_m2"], rel=1e-8, abs=0.05)
    transform = place["transform"]
    drawn = rasterio.features.rasterize(
        zip(polygons, columns["class"].tolist(), strict=True), ids.shape, NODATA, transform=transform
    )
    np.testing.assert_array_equal(drawn, ids)


@pytest.mark.breadth(but=("utm", "antimeridian", "south-up", "pole"))
@pytest.mark.parametrize("name", PLACES)
def test_geojson_is_rfc_7946_and_has_the_same_areas_on_the_ellipsoid(name: str, made: Made) -> None:
    sink, _ = made(name)
    document = json.loads(sink.artifacts["polygons.geojson"].read_text())
    assert set(document) == {"type", "features"}
    _, polygons, columns = flatgeobuf(sink)
    assert len(document["features"]) == len(polygons)
    total = 0.0
    for feature in document["features"]:
        assert set(feature) == {"type", "properties", "geometry"}
        assert feature["properties"]["name"] == f"class {feature['properties']['class']}"
        geometry = shapely.geometry.shape(feature["geometry"])
        assert geometry.is_valid
        xy = shapely.get_coordinates(geometry)
        assert np.abs(xy[:, 0]).max() <= 180
        for part in shapely.get_parts(geometry):
            assert shapely.is_ccw(part.exterior)
            assert not any(map(shapely.is_ccw, part.interiors))
        parts = shapely.get_parts(shapely.segmentize(geometry, 0.02))
        square_metres = sum(abs(Geod(ellps="WGS84").geometry_area_perimeter(part)[0]) for part in parts)
        total += square_metres
        assert feature["properties"]["area_m2"] == pytest.approx(square_metres, rel=1e-3)
    assert columns["area_m2"].sum() == pytest.approx(total, rel=1e-4)


def test_the_antimeridian_and_the_pole_are_cut(made: Made) -> None:
    for place in ("antimeridian", "pole"):
        sink, _ = made(place)
        kinds = [f["geometry"]["type"] for f in json.loads(sink.artifacts["polygons.geojson"].read_text())["features"]]
        assert kinds.count("MultiPolygon") > 3


def test_geojson_drawn_on_the_scenes_grid_is_the_map(made: Made) -> None:
    sink, _ = made("geographic")
    features = json.loads(sink.artifacts["polygons.geojson"].read_text())["features"]
    ids = read(sink.artifacts["classes.tif"])[0]
    drawn = rasterio.features.rasterize(
        [(feature["geometry"], feature["properties"]["class"]) for feature in features],
        ids.shape,
        NODATA,
        transform=PLACES["geographic"]["transform"],
    )
    np.testing.assert_array_equal(drawn, ids)


def test_small_polygons_are_left_out_and_counted(made: Made, tmp_path: Path) -> None:
    every, _ = made("utm")
    large, stats = polygons_of(tmp_path, polygons={"min_pixels": 100})
    pixels = flatgeobuf(every)[2]["pixels"]
    kept = flatgeobuf(large)[2]["pixels"]
    assert sorted(kept) == sorted(pixels[pixels >= 100])
    assert 0 < len(kept) < len(pixels)
    assert stats["polygons"]["left_out"] == len(pixels) - len(kept)


def test_simplified_outlines_have_fewer_points_and_the_maps_areas_beside_them(made: Made, tmp_path: Path) -> None:
    plain, _ = made("utm")
    simple, _ = polygons_of(tmp_path, polygons={"simplify_px": 8})
    points = [shapely.get_num_coordinates(flatgeobuf(sink)[1]).sum() for sink in (plain, simple)]
    assert points[1] < 0.9 * points[0]
    assert sorted(flatgeobuf(plain)[2]["pixels"]) == sorted(flatgeobuf(simple)[2]["pixels"])


def test_without_a_crs_there_is_no_geojson_and_no_area(tmp_path: Path) -> None:
    sink, stats = polygons_of(tmp_path, place={"crs": None, "transform": NORTH_UP})
    assert set(sink.artifacts) == {"classes.tif", "classes.tif.aux.xml", "classes.qml", "polygons.fgb", "stats.json"}
    meta, polygons, columns = flatgeobuf(sink)
    assert meta["crs"] is None
    assert set(columns) == {"class", "name", "pixels"}
    assert shapely.area(polygons).sum() == columns["pixels"].sum() * 900
    assert stats["polygons"]["notes"] == ["polygons.geojson was not created: the scene has no CRS."]
    assert stats["notes"] == stats["polygons"]["notes"]


def test_without_a_geotransform_there_are_no_polygons_and_the_result_says_why(tmp_path: Path) -> None:
    sink, stats = polygons_of(tmp_path, place={"crs": None, "transform": None})
    assert set(sink.artifacts) == {"classes.tif", "classes.tif.aux.xml", "classes.qml", "stats.json"}
    assert stats["polygons"]["count"] is None
    assert "no geotransform" in stats["polygons"]["notes"][0]
    assert stats["notes"] == stats["polygons"]["notes"]


def test_a_map_of_noise_gets_a_note_in_place_of_polygons(tmp_path: Path) -> None:
    numbers = (np.indices((1100, 1100)).sum(axis=0) % 2 + 1).astype(np.uint8)[None]
    path = write_scene(tmp_path / "s.tif", numbers)
    sink, result = segment(path, tmp_path / "out", outputs=("polygons",))
    assert sink.artifacts == {}
    assert list((tmp_path / "out").iterdir()) == []
    assert result.data is not None
    assert "noise" in result.data["polygons"]["notes"][0]
    assert result.data["notes"] == result.data["polygons"]["notes"]


def test_a_map_without_data_has_files_without_polygons(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "s.tif", np.zeros((1, 70, 50), np.uint8), nodata=0)
    sink, result = segment(path, tmp_path / "out", outputs=("polygons",))
    assert result.data is not None
    assert result.data["polygons"]["count"] == 0
    assert json.loads(sink.artifacts["polygons.geojson"].read_text())["features"] == []
    assert len(flatgeobuf(sink)[1]) == 0


def test_a_second_run_gives_the_same_bytes(made: Made, tmp_path: Path) -> None:
    first, second = made("utm")[0], polygons_of(tmp_path)[0]
    for name in ("polygons.fgb", "polygons.geojson"):
        assert first.artifacts[name].read_bytes() == second.artifacts[name].read_bytes()


@pytest.mark.parametrize("wrong", [{"min_pixels": 0}, {"simplify_px": -1}, {"simplify_px": 101}, {"classes": [1]}])
def test_what_cannot_be_asked_of_polygons_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SegmentationRequest.model_validate({"scene": "media://x", "polygons": wrong})
