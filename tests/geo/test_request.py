"""Invalid requests are rejected by the JSON Schema with the invalid field; pydantic rejects the same requests."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from penstock.errors import InvalidRequest
from penstock.intake.submissions import check_input
from penstock.json_body import validated
from penstock.models import CatalogueEntry, media_references
from penstock.processors.geo.request import SegmentationRequest

ENTRY = CatalogueEntry(
    name="toy",
    title="A toy",
    revision="1",
    queue="default",
    input_schema=SegmentationRequest.model_json_schema(),
    outputs=(),
    execution_timeout_s=600,
    queue_ttl_s=3600,
    max_attempts=3,
)
FILE = {"media": "media://1/a.tif"}


@pytest.mark.parametrize(
    "request_",
    [
        {"scene": "media://1"},
        {"scene": "media://1", "sidecar": "media://2", "stac": "media://3", "radiometry": {"scale": 1}},
        {"files": [FILE]},
        {"files": [{**FILE, "bands": ["B02"], "radiometry": {"nodata": 0}}, FILE], "bands": ["B02", 2]},
        {"dates": [{"scene": "media://1", "sidecar": "media://2"}, {"files": [FILE], "stac": "media://3"}]},
        {"dates": [{"scene": "media://1"}], "radiometry": {"scale": 1}, "bands": [1]},
        {"scene": "media://1", "datetime": "2024-04-02T16:50:00.25+01:00"},
        {"scene": "media://1", "outputs": ["change"], "change": {"of": ["a"], "before": {"scene": "media://2"}}},
        {"scene": "media://1", "change": {"of": ["a"], "before": {"scene": "media://2"}}},
        {"dates": [{"scene": "media://1"}, {"stac": {}}], "series": {"of": ["a"], "ignore": []}},
    ],
)
def test_scenes_come_as_one_file_or_several_or_dates_of_either(request_: dict[str, Any]) -> None:
    check_input(ENTRY, request_)
    assert SegmentationRequest.model_validate(request_).acquisitions()


BESIDE = "cannot be combined with the other fields"
NO_TIME = "must be a time such as 2026-01-31T12:00:00Z"


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        ({}, {"/input/scene": "is required"}),
        ({"scene": None}, {"/input/scene": "None is not of type 'string'"}),
        ({"scene": "media://1", "files": [FILE]}, {"/input/scene": BESIDE, "/input/files": BESIDE}),
        (
            {"scene": "media://1", "dates": [{"scene": "media://1"}]},
            {"/input/scene": BESIDE, "/input/dates": BESIDE},
        ),
        ({"dates": [{"scene": "media://1"}], "sidecar": "media://2"}, {"/input/sidecar": BESIDE}),
        ({"dates": [{"scene": "media://1"}], "stac": "media://2"}, {"/input/stac": BESIDE}),
        ({"dates": []}, {"/input/dates": "[] should be non-empty"}),
        ({"dates": [{}]}, {"/input/dates/0/scene": "is required"}),
        (
            {"dates": [{"scene": "media://1", "files": [FILE]}]},
            {"/input/dates/0/scene": BESIDE, "/input/dates/0/files": BESIDE},
        ),
        (
            {"dates": [{"scene": "media://1", "dates": []}]},
            {"/input/dates/0/dates": "is not known to this model"},
        ),
        (
            {"scene": "media://1", "outputs": ["stats", "change"]},
            {"/input/outputs": "`change` needs the field `change`"},
        ),
        ({"scene": "media://1", "series": {"of": ["a"]}}, {"/input/dates": "is required with series"}),
        ({"dates": [{"scene": "media://1"}], "series": {"of": []}}, {"/input/series/of": "[] should be non-empty"}),
        (
            {"dates": [{"scene": "media://1"}], "series": {"of": ["a"]}, "datetime": "2020-01-01T00:00:00Z"},
            {"/input/datetime": BESIDE},
        ),
        ({"scene": "media://1", "datetime": "2020"}, {"/input/datetime": NO_TIME}),
        ({"scene": "media://1", "datetime": 2020}, {"/input/datetime": "2020 is not of type 'string'"}),
        (
            {"dates": [{"scene": "media://1", "datetime": "2020-01-01"}]},
            {"/input/dates/0/datetime": "must have a time zone, such as Z"},
        ),
        ({"files": []}, {"/input/files": "[] should be non-empty"}),
        ({"files": ["media://1"]}, {"/input/files/0": "'media://1' is not of type 'object'"}),
        ({"files": [{"bands": ["x"]}]}, {"/input/files/0/media": "is required"}),
        ({"files": [{**FILE, "bands": [1]}]}, {"/input/files/0/bands/0": "1 is not of type 'string'"}),
        ({"files": [{**FILE, "resolution": 10}]}, {"/input/files/0/resolution": "is not known to this model"}),
    ],
)
def test_wrong_combinations_are_told_of_at_their_place(request_: dict[str, Any], told: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_input(ENTRY, request_)
    assert {issue.pointer: issue.detail for issue in refused.value.errors} == told
    with pytest.raises(ValidationError):
        SegmentationRequest.model_validate(request_)


@pytest.mark.parametrize("change", [{}, {"change": {"of": []}}])
def test_the_output_change_without_its_field_is_an_error_of_the_outputs(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        SegmentationRequest.model_validate({"scene": "media://1", "outputs": ["change"], **change})
    assert {error["loc"][0] for error in refused.value.errors()} == {"change" if change else "outputs"}


def test_all_media_of_a_request_are_found_by_the_schema() -> None:
    dates = [
        {"scene": "media://1", "sidecar": "media://2"},
        {"files": [{"media": "media://3"}, {"media": "media://4"}], "stac": "media://5"},
    ]
    assert dict(media_references(ENTRY.input_schema, {"dates": dates})) == {
        "/dates/0/scene": "media://1",
        "/dates/0/sidecar": "media://2",
        "/dates/1/files/0/media": "media://3",
        "/dates/1/files/1/media": "media://4",
        "/dates/1/stac": "media://5",
    }


def test_every_field_says_what_it_is() -> None:
    schema = SegmentationRequest.model_json_schema()
    for name, part in {"": schema, **schema["$defs"]}.items():
        assert part["description"], name
        for field, about in part["properties"].items():
            assert about.get("description"), f"{name}.{field}"


RING = [[0, 0], [1, 0], [1, 1], [0, 0]]
FEATURE = {"type": "Feature", "properties": {}, "geometry": {"type": "Polygon", "coordinates": [RING]}}
POLYGONS = "must be of type Polygon or MultiPolygon"
NO_CODE = "must be a code such as EPSG:32738"


@pytest.mark.parametrize(
    ("area", "told", "by_the_service"),
    [
        ({"bbox": [1, 2, 3, 4], "crs": 4326}, {"crs": NO_CODE}, {"crs": "4326 is not of type 'string'"}),
        (
            {"bbox": [1, 2, 3, 4], "crs": "utm38"},
            {"crs": NO_CODE},
            {"crs": "has the wrong format; an example is EPSG:32738"},
        ),
        (
            {"geometry": FEATURE},
            {"geometry": "must be a geometry: give the feature's `geometry`"},
            {"geometry/type": "must be one of: MultiPolygon, Polygon; give its field `geometry` instead"},
        ),
        (
            {"geometry": {"type": "Point", "coordinates": [1, 2]}},
            {"geometry": POLYGONS},
            {"geometry/type": "must be one of: MultiPolygon, Polygon"},
        ),
        (
            {"bbox": [1, 2, "x", 4]},
            {"bbox/2": "must be a valid number, unable to parse string as a number"},
            {"bbox/2": "'x' is not of type 'number'"},
        ),
    ],
)
def test_wrong_areas_are_explained_without_regexes_and_without_none(
    area: dict[str, Any], told: dict[str, str], by_the_service: dict[str, str]
) -> None:
    value = {"scene": "media://1", "area": area}
    with pytest.raises(InvalidRequest) as refused:
        validated(SegmentationRequest, value)
    assert {issue.pointer: issue.detail for issue in refused.value.errors} == {f"/area/{p}": t for p, t in told.items()}
    with pytest.raises(InvalidRequest) as refused:
        check_input(ENTRY, value)
    found = {issue.pointer: issue.detail for issue in refused.value.errors}
    assert found == {f"/input/area/{place}": said for place, said in by_the_service.items()}
