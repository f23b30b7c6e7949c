"""Bodies: what strict JSON is, and when two bodies are the same."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.body import MAX_DEPTH, fingerprint, parse_json
from penstock.errors import MalformedBody

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_every_json_document_is_read_as_it_stands(value: Any) -> None:
    assert parse_json(json.dumps(value).encode()) == value
    assert parse_json(json.dumps(value, ensure_ascii=False).encode()) == value


@given(VALUES)
def test_layout_and_order_do_not_change_the_fingerprint(value: Any) -> None:
    spaced = parse_json(json.dumps(value, indent=3).encode())
    backwards = dict(reversed(value.items())) if isinstance(value, dict) else value
    assert fingerprint(spaced) == fingerprint(backwards) == fingerprint(value)


@given(VALUES, VALUES)
def test_different_documents_have_different_fingerprints(one: Any, other: Any) -> None:
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (fingerprint(one) == fingerprint(other)) == same


@given(st.binary(max_size=200))
def test_whatever_comes_is_read_or_refused(data: bytes) -> None:
    value = None
    with suppress(MalformedBody):
        value = parse_json(data)
    assert len(fingerprint(value)) == 64


def test_the_depth_is_limited() -> None:
    deep = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert parse_json(deep.encode()) is not None
    with pytest.raises(MalformedBody, match="nested"):
        parse_json(f"[{deep}]".encode())
