"""Filters of STAC items: the subset of CQL2, and the reasons for which items do not pass."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InvalidRequest
from penstock.intake.item_filter import MAX_CHARS, parse_filter, why_not


def item(**properties: Any) -> dict[str, Any]:
    return {"id": "S2A_1", "collection": "s2", "properties": properties}


CLEAR = item(**{"eo:cloud_cover": 5, "platform": "sentinel-2a", "datetime": "2026-01-31T10:00:00Z", "gsd": 10.0})


@pytest.mark.parametrize(
    "text",
    [
        "eo:cloud_cover < 20",
        '"eo:cloud_cover" <= 5',
        "20 > eo:cloud_cover",
        "eo:cloud_cover < 20 AND platform = 'sentinel-2a'",
        "eo:cloud_cover < 1 OR platform = 'sentinel-2a'",
        "NOT (eo:cloud_cover > 20)",
        "eo:cloud_cover BETWEEN 0 AND 5",
        "platform IN ('sentinel-2a', 'sentinel-2b')",
        "platform LIKE 'sentinel-2%'",
        "platform LIKE 'sentinel__a'",
        "platform <> 'landsat-8'",
        "view:off_nadir IS NULL",
        "view:off_nadir < 5 OR eo:cloud_cover < 20",
        "id = 'S2A_1' AND collection = 's2'",
        "datetime > TIMESTAMP('2026-01-01T00:00:00Z')",
        "datetime >= DATE('2026-01-31')",
        "gsd = 10",
    ],
)
def test_a_clear_item_passes(text: str) -> None:
    parse_filter(text)
    assert why_not(text, CLEAR) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("eo:cloud_cover < 2", "eo:cloud_cover is 5, but must be"),
        ("eo:cloud_cover < 20 AND platform = 'landsat-8'", "platform is sentinel-2a, but must be"),
        ("view:off_nadir < 5", "has no view:off_nadir"),
        ("NOT (view:off_nadir < 5)", "has no view:off_nadir"),
        ("view:off_nadir < 5 AND eo:cloud_cover > 20", "eo:cloud_cover is 5, but must be"),
        ("eo:cloud_cover < 'many'", "eo:cloud_cover is 5, but must be"),
        ("platform LIKE 'landsat%'", "platform is sentinel-2a, but must be"),
        ("platform LIKE 'sentinel-2[ab]'", "platform is sentinel-2a, but must be"),
        ("datetime < TIMESTAMP('2026-01-01T00:00:00Z')", "datetime is 2026-01-31T10:00:00Z, but must be"),
        ("eo:cloud_cover IS NULL", "eo:cloud_cover is 5, but must be"),
        ("platform IN ('a', 'b') OR eo:cloud_cover > 50", "platform is sentinel-2a, but must be"),
        ("NOT (eo:cloud_cover < 20)", "is false"),
    ],
)
def test_another_does_not_and_the_reason_names_the_comparison(text: str, reason: str) -> None:
    parse_filter(text)
    assert reason in str(why_not(text, CLEAR))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("eo:cloud_cover <", "is no CQL2 text"),
        ("", "is no CQL2 text"),
        ("cloudy", "is no condition"),
        ("S_INTERSECTS(geometry, POINT(0 0))", "'s_intersects', which is not supported"),
        ("eo:cloud_cover + 1 < 5", "compares something else"),
        ("eo:cloud_cover < 5 AND T_AFTER(datetime, DATE('2026-01-01'))", "'t_after', which is not supported"),
        ("a = 1 AND " * 200 + "a = 1", f"at most {MAX_CHARS} are allowed"),
        ("(" * 400 + "a = 1" + ")" * 400, "more than 30 parentheses"),
        ("NOT " * 200 + "a = 1", "more than 30 parentheses"),
    ],
)
def test_a_text_that_is_no_such_filter_is_refused_with_a_pointer(text: str, complaint: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        parse_filter(text)
    [issue] = error.value.errors
    assert issue.pointer == "/filter"
    assert complaint in issue.detail


@pytest.mark.parametrize(
    "properties", [None, [], "a", {"eo:cloud_cover": {"op": "=", "args": [1, 1]}}, {"eo:cloud_cover": [1]}]
)
def test_an_item_whose_properties_are_no_such_values_does_not_pass(properties: Any) -> None:
    assert why_not("eo:cloud_cover < 20", {"properties": properties}) == "has no eo:cloud_cover"
