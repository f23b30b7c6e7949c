"""The document of zones as it is sent: its outline, the CRS and the names of features."""

from __future__ import annotations

from typing import Any

import pytest
import shapely
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from penstock.models import media_references
from penstock.processors.geo.request import DetectionRequest, EmbeddingRequest, RegressionRequest, SegmentationRequest
from penstock.processors.geo.zones_request import ZoneFeature, ZonesDocument
from tests.support.geo.shares import collection

SQUARE = shapely.box(15, 45, 15.02, 45.02)
URN = {"type": "name", "properties": {"name": "urn:ogc:def:crs:EPSG::32633"}}
CRS84 = {"type": "name", "properties": {"name": "urn:ogc:def:crs:OGC:1.3:CRS84"}}


@pytest.mark.parametrize(
    ("crs", "code"), [(None, "EPSG:4326"), ("EPSG:32633", "EPSG:32633"), (URN, "EPSG:32633"), (CRS84, "EPSG:4326")]
)
def test_the_crs_is_a_code_or_the_member_of_older_geojson(crs: Any, code: str) -> None:
    assert ZonesDocument.model_validate({**collection({"a": SQUARE}), "crs": crs}).crs == code


@pytest.mark.parametrize("kind", [DetectionRequest, EmbeddingRequest, RegressionRequest, SegmentationRequest])
def test_every_scene_model_takes_a_reference_or_the_document(kind: Any) -> None:
    document = collection({"a": SQUARE}, crs=None)
    assert kind(scene="media://a", zones=document).zones == ZonesDocument.model_validate(document)
    given = {"scene": "media://a", "zones": "media://b"}
    assert kind(**given).zones == "media://b"
    schema = kind.model_json_schema()
    assert [place for place, _ in media_references(schema, given)] == ["/scene", "/zones"]
    assert [place for place, _ in media_references(schema, {**given, "zones": document})] == ["/scene"]
    for zones in (document, {**document, "crs": URN, "name": "a layer"}, "media://b"):
        Draft202012Validator(schema).validate({**given, "zones": zones})
    assert not Draft202012Validator(schema).is_valid({**given, "zones": {"type": "FeatureCollection", "features": []}})


@pytest.mark.parametrize(
    "document",
    [
        {"type": "Polygon", "coordinates": []},
        {"type": "FeatureCollection"},
        {"type": "FeatureCollection", "features": []},
    ],
)
def test_other_documents_are_no_zones(document: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SegmentationRequest(scene="media://a", zones=document)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("feature", "field", "name"),
    [
        ({"properties": {"name": " North \n bank "}, "id": 7}, "name", "North bank"),
        ({"properties": {"name": None}, "id": 7}, "name", "7"),
        ({"properties": None, "id": "x"}, "name", "x"),
        ({"properties": {"code": 12}}, "code", "12"),
        ({"id": "x"}, "code", None),
        ({"properties": {"name": ""}}, "name", None),
        ({"properties": {"name": ["a"]}}, "name", None),
    ],
)
def test_a_feature_is_named_by_a_property_or_by_its_id(feature: dict[str, Any], field: str, name: str | None) -> None:
    geometry = {"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [1, 1], [0, 0]]]}
    assert ZoneFeature.model_validate({"type": "Feature", "geometry": geometry, **feature}).name(field) == name
