"""Areas as people have them: GeoJSON features and collections, and boxes with heights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from penstock.errors import InvalidRequest
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
