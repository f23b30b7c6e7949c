"""Batches of the items of a search, which raster models take."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.errors import InvalidInput
from penstock.intake.stac_jobs import batch_lines
from penstock.processors.geo.request import SceneRequest
from tests.support.stac_server import item

AREA = {"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [1, 1], [0, 0]]]}


def items(*hours: float) -> list[dict[str, Any]]:
    begin = datetime(2026, 5, 1, tzinfo=UTC)
    found = [item(f"i{hour:g}", "s2", begin + timedelta(hours=hour), (0, 0, 1, 1), {}) for hour in hours]
    for each in found:
        each["links"] = [
            {"rel": "parent", "href": "https://a.b/"},
            {"rel": "self", "href": f"https://a.b/{each['id']}"},
        ]
    return found


@pytest.mark.parametrize("area", [None, AREA])
@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("scene", ["i1", "i2", "i30", "i50"]),
        ("mosaic", ["2026-05-01", "2026-05-02", "2026-05-03"]),
        ("series", ["2026-05-01_2026-05-03"]),
    ],
)
def test_each_line_is_the_input_of_a_raster_model(kind: Any, names: list[str], area: dict[str, Any] | None) -> None:
    lines = batch_lines(items(1, 2, 30, 50), kind, area)
    assert [line["custom_id"] for line in lines] == names
    for line in lines:
        request = SceneRequest.model_validate(line["input"])
        assert (request.area is None) is (area is None)


def test_the_items_of_a_day_are_one_scene_and_days_are_dates() -> None:
    first, *days = batch_lines(items(1, 2, 30), "mosaic", None)
    assert [each["id"] for each in first["input"]["stac"]["features"]] == ["i1", "i2"]
    assert [day["input"]["stac"]["id"] for day in days] == ["i30"]
    (series,) = batch_lines(items(1, 2, 30), "series", None)
    assert [date["stac"]["type"] for date in series["input"]["dates"]] == ["FeatureCollection", "Feature"]


def test_a_pass_over_midnight_of_utc_is_one_day() -> None:
    """Sentinel-2 passes Sydney, at 151 degrees, around midnight of UTC."""
    sydney = items(23.9, 24.1, 47.9)
    for each in sydney:
        each["bbox"] = [151.0, -34.0, 152.0, -33.0]
    assert [line["custom_id"] for line in batch_lines(sydney, "mosaic", None)] == ["2026-05-02", "2026-05-03"]
    assert [line["custom_id"] for line in batch_lines(items(23.9, 24.1), "mosaic", None)] == [
        "2026-05-01",
        "2026-05-02",
    ]


def test_days_are_those_of_the_time_and_not_of_its_text() -> None:
    early, late = items(1, 2)
    late["properties"]["datetime"] = "2026-04-30T22:30:00-05:00"
    (line,) = batch_lines([early, late, *items(4)], "mosaic", None)
    assert [each["id"] for each in line["input"]["stac"]["features"]] == ["i1", "i2", "i4"]


@pytest.mark.parametrize("bbox", [None, [], ["west"], [float("nan")], [10**400, 0, 0, 0]])
def test_without_a_usable_bbox_days_are_those_of_utc(bbox: Any) -> None:
    (odd,) = items(23.9)
    assert batch_lines([{**odd, "bbox": bbox}], "mosaic", None)[0]["custom_id"] == "2026-05-01"


def test_an_item_keeps_its_own_address_alone() -> None:
    (line,) = batch_lines(items(1), "scene", None)
    assert line["input"]["stac"]["links"] == [{"rel": "self", "href": "https://a.b/i1"}]


def test_an_item_without_an_id_makes_no_job_and_says_so() -> None:
    (nameless,) = items(1)
    del nameless["id"]
    with pytest.raises(InvalidInput, match="has no id"):
        batch_lines([nameless], "scene", None)


def test_links_that_are_no_list_are_left_out() -> None:
    (odd,) = items(1)
    (line,) = batch_lines([{**odd, "links": 5}], "scene", None)
    assert line["input"]["stac"]["links"] == []


def test_an_item_without_a_time_belongs_to_no_day() -> None:
    (timeless,) = items(1)
    timeless["properties"] = {"datetime": None}
    assert len(batch_lines([timeless], "scene", None)) == 1
    with pytest.raises(InvalidInput, match="i1 has no time"):
        batch_lines([timeless], "mosaic", None)
