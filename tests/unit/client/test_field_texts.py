"""Texts as values of fields."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.client.field_texts import put_text
from penstock.client.local_files import UsageProblem

SCHEMA: dict[str, Any] = {
    "properties": {"n": {"type": "number"}, "size": {"$ref": "#/$defs/Size"}, "rows": {"type": "array"}},
    "$defs": {"Size": {"type": "object", "properties": {"w": {"type": "number"}}}},
}


def test_a_text_goes_to_its_place() -> None:
    found: dict[str, Any] = {"n": 1}
    put_text(found, "size.w", "2", SCHEMA)
    put_text(found, "n", "3", SCHEMA, read=lambda text, part, root, name: (text, part["type"], root is SCHEMA, name))
    assert found == {"n": ("3", "number", True, "n"), "size": {"w": 2}}


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("n", "NaN", "n: 'NaN' is not a number"),
        ("rows", "[" * 5000, "is not a list"),
        ("size.h", "1", "size.h: there is no field 'h'; known fields: w"),
        ("n.w", "1", "n.w: 'n' already has a value"),
    ],
)
def test_a_text_that_is_no_value_is_refused(name: str, text: str, sentence: str) -> None:
    with pytest.raises(UsageProblem) as raised:
        put_text({"n": 1}, name, text, SCHEMA)
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    ("text", "value"), [("10", 10), ("x", "x"), ("true", True), ("null", None), ("1.5", 1.5), ("other", "other")]
)
def test_a_choice_keeps_its_type(text: str, value: Any) -> None:
    found = dict[str, Any]()
    put_text(found, "vat", text, {"properties": {"vat": {"enum": [0, 10, "x", True, None, 1.5]}}})
    assert found == {"vat": value}
    assert type(found["vat"]) is type(value)
