"""Filters of STAC items: the same conditions as text, as CQL2, as a query, and checked here."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidInput
from penstock.intake.stac_filter import Condition, cql2, parse_filter, query

ITEM: dict[str, Any] = {
    "id": "a", "collection": "s2", "properties": {"eo:cloud_cover": 19.5, "platform": "sentinel-2a", "wet": True},
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("eo:cloud_cover < 20", True),
        ("eo:cloud_cover<19.5", False),
        ("eo:cloud_cover <= 1.95e1", True),
        ("\"eo:cloud_cover\" > 19 AND platform = 'sentinel-2a'", True),
        ("platform <> 'sentinel-2a'", False),
        ("wet = true and eo:cloud_cover >= 0", True),
        ("wet = FALSE", False),
        ("collection = 's2' and id = 'a'", True),
        ("gsd < 20", False),  # an item without the property does not fulfil the condition
        ("platform < 20", False),
        ("wet < 20", False),
    ],
)
def test_a_condition_holds_for_an_item_or_not(text: str, holds: bool) -> None:
    assert all(condition.holds(ITEM) for condition in parse_filter(text)) is holds


@pytest.mark.parametrize(
    "text",
    ["", "eo:cloud_cover", "a < ", "a < b", "a < 1 or b < 2", "a < 1 and", "a < 1 b < 2", "a like 'x'", "(a < 1)"],
)
def test_other_text_is_rejected_with_its_place(text: str) -> None:
    with pytest.raises(InvalidInput, match="filter"):
        parse_filter(text)


def test_the_forms_for_servers() -> None:
    conditions = parse_filter("eo:cloud_cover < 20 and eo:cloud_cover >= 5 and platform = 'it''s'")
    assert cql2(conditions) == {
        "op": "and",
        "args": [
            {"op": "<", "args": [{"property": "eo:cloud_cover"}, 20.0]},
            {"op": ">=", "args": [{"property": "eo:cloud_cover"}, 5.0]},
            {"op": "=", "args": [{"property": "platform"}, "it's"]},
        ],
    }
    assert cql2(conditions[:1]) == {"op": "<", "args": [{"property": "eo:cloud_cover"}, 20.0]}
    assert query(conditions) == {"eo:cloud_cover": {"lt": 20.0, "gte": 5.0}, "platform": {"eq": "it's"}}


@given(st.text())
def test_any_text_is_conditions_or_an_error(text: str) -> None:
    try:
        found = parse_filter(text)
    except InvalidInput:
        return
    assert found
    assert all(isinstance(each, Condition) for each in found)
