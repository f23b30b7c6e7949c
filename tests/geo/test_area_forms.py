"""Areas as people have them: GeoJSON features and collections, and boxes with heights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from penstock.errors import InvalidInput, InvalidRequest
from penstock.intake.submissions import check_input
from penstock.models import Limits
from penstock.processors.geo.area_request import AreaRequest
from penstock.processors.geo.read.raster import read_scene
from penstock.processors.geo.read.scene_area import SceneArea, find_area
from penstock.processors.geo.request import SegmentationRequest
from penstock.processors.geo.tiling.plan import Box
from tests.geo.test_request import ENTRY
from tests.support.geo.scenes import NORTH_UP, pattern, write_scene

UTM = {"crs": {"type": "name", "properties": {"name": "urn:ogc:def:crs:EPSG::32633"}}}


def polygon(left: int, top: int, right: int, bottom: int) -> dict[str, Any]:
    """Return a rectangle of pixels of NORTH_UP as GeoJSON."""
    corners = ((left, top), (right, top), (right, bottom), (left, bottom), (left, top))
    return {"type": "Polygon", "coordinates": [[list(NORTH_UP @ corner) for corner in corners]]}


def feature(geometry: dict[str, Any] | None, **fields: Any) -> dict[str, Any]:
    return {"type": "Feature", "id": 7, "properties": {"name": "field"}, "geometry": geometry, **fields}


def collection(*geometries: dict[str, Any]) -> dict[str, Any]:
    # As `ogr2ogr` and QGIS write it; the CRS is that of GeoJSON before RFC 7946.
    return {"type": "FeatureCollection", "name": "fields", "features": [*map(feature, geometries)], **UTM}


def found(path: Path, area: dict[str, Any]) -> SceneArea:
    check_input(ENTRY, {"scene": "media://1", "area": area})
    return find_area(AreaRequest.model_validate(area), read_scene(path, Limits()))


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    return write_scene(tmp_path / "scene.tif", pattern(90, 100))


def test_a_feature_is_its_geometry(scene: Path) -> None:
    expected = found(scene, {"geometry": polygon(10, 20, 50, 60), "crs": "EPSG:32633"})
    given = found(scene, feature(polygon(10, 20, 50, 60), bbox=[1, 2, 3, 4, 5, 6], **UTM))
    assert given.box == expected.box == Box(20, 10, 60, 50)
    assert given.shape.equals(expected.shape)


@pytest.mark.parametrize("parts", [False, True])
def test_a_geometry_is_an_area_as_it_is(parts: bool, scene: Path) -> None:
    expected = found(scene, {"geometry": polygon(10, 20, 50, 60), "crs": "EPSG:32633"})
    one = polygon(10, 20, 50, 60)
    several = {"type": "MultiPolygon", "coordinates": [one["coordinates"]]}
    given = found(scene, (several if parts else one) | {"bbox": [1, 2, 3, 4]} | UTM)
    assert given.box == expected.box
    assert given.shape.equals(expected.shape)


@pytest.mark.parametrize("way", [feature, lambda one: collection(one) | {"crs": None}, lambda one: one])
def test_metres_without_a_crs_are_no_degrees(way: Any, scene: Path) -> None:
    with pytest.raises(InvalidInput, match=r'are not degrees of EPSG:4326.*"crs": "EPSG:32633" if') as caught:
        found(scene, way(polygon(10, 20, 50, 60)))
    assert [issue.pointer for issue in caught.value.errors] == ["/input/area/crs"]
    with pytest.raises(InvalidInput, match="are not degrees of EPSG:4326"):
        found(scene, {"bbox": [*(NORTH_UP @ (10, 60)), *(NORTH_UP @ (50, 20))]})


def test_a_feature_without_a_geometry_is_told_in_words() -> None:
    for area in (
        feature(None),
        collection(polygon(0, 0, 1, 1)) | {"features": [feature(polygon(0, 0, 1, 1)), feature(None)]},
    ):
        with pytest.raises(ValidationError, match="has no geometry: leave the feature out, or give it a polygon"):
            AreaRequest.model_validate(area)


def test_a_collection_is_the_union_of_its_features(scene: Path) -> None:
    area = found(scene, collection(polygon(10, 20, 50, 60), polygon(30, 40, 70, 80)))
    mask = np.zeros((90, 100), bool)
    mask[20:60, 10:50] = mask[40:80, 30:70] = True
    np.testing.assert_array_equal(area.mask(Box(0, 0, 90, 100)), mask)
    assert area.box == Box(20, 10, 80, 70)


@pytest.mark.parametrize(
    ("crs", "code"),
    [
        ({}, "EPSG:4326"),
        ({"crs": None}, "EPSG:4326"),
        ({"crs": {"type": "name", "properties": {"name": "urn:ogc:def:crs:OGC:1.3:CRS84"}}}, "EPSG:4326"),
        ({"crs": {"type": "name", "properties": {"name": "EPSG:32633"}}}, "EPSG:32633"),
        (UTM, "EPSG:32633"),
        ({"crs": "EPSG:32633"}, "EPSG:32633"),
    ],
)
def test_the_crs_of_older_geojson_counts(crs: dict[str, Any], code: str) -> None:
    assert AreaRequest.model_validate(feature(polygon(0, 0, 1, 1), **crs)).crs == code


@pytest.mark.parametrize(
    "area",
    [
        feature(None),
        feature({"type": "Point", "coordinates": [1, 2]}),
        {"type": "FeatureCollection", "features": []},
        {"type": "FeatureCollection", "features": [{"type": "Feature", "geometry": None}]},
        {"type": "FeatureCollection"},
        {"type": "Feature"},
        {"type": "Polygon"},
        {"type": "Polygon", "coordinates": 1},
        {"bbox": [1, 2, 3, 4, 5]},
        {"bbox": [1, 2, 3]},
        {"type": "Sphere", "bbox": [1, 2, 3, 4]},
    ],
)
def test_other_geojson_is_refused_by_the_service_and_the_processor(area: dict[str, Any]) -> None:
    value = {"scene": "media://1", "area": area}
    with pytest.raises(ValidationError):
        SegmentationRequest.model_validate(value)
    if area != {"bbox": [1, 2, 3, 4, 5]}:  # the schema has a range of lengths
        with pytest.raises(InvalidRequest):
            check_input(ENTRY, value)


def test_a_box_of_six_numbers_has_heights(scene: Path) -> None:
    (west, north), (east, south) = NORTH_UP @ (10, 20), NORTH_UP @ (50, 60)
    crs = {"crs": "EPSG:32633"}
    flat, high = {"bbox": [west, south, east, north], **crs}, {"bbox": [west, south, -5, east, north, 900], **crs}
    assert found(scene, high).box == found(scene, flat).box == Box(20, 10, 60, 50)
