"""Bodies: what strict JSON is, and when two bodies are the same."""

from __future__ import annotations

import json
import time
from codecs import BOM_UTF8
from contextlib import suppress
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, model_validator

from penstock.errors import InvalidRequest, Issue, MalformedBody
from penstock.json_body import (
    MAX_DEPTH,
    MAX_ISSUES,
    MAX_NAMES,
    SMALL,
    fingerprint,
    is_small,
    is_small_value,
    parse_json,
    validated,
)

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
INTEGERS = st.integers(-(2**64 - 1), 2**64 - 1)
VALUES = st.recursive(
    st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
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


def test_a_body_that_is_no_json_is_told_where() -> None:
    with pytest.raises(MalformedBody, match=r"at line 2, column 6$"):
        parse_json(b'{\n"a": }')


@given(VALUES)
def test_a_byte_order_mark_changes_nothing(value: Any) -> None:
    assert parse_json(BOM_UTF8 + json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    ("body", "place", "name"),
    [
        ('{"input": {"times": [1, NaN]}}', "/input/times/1", "NaN"),
        ('{"a": {"b~c": Infinity}}', "/a/b~0c", "Infinity"),
        ("[-Infinity]", "/0", "-Infinity"),
        ("NaN", "", "NaN"),
    ],
)
def test_a_number_that_json_lacks_is_told_where(body: str, place: str, name: str) -> None:
    with pytest.raises(MalformedBody) as caught:
        parse_json(body.encode())
    why = f"is {name}, which JSON does not have: write a number or null"
    assert caught.value.errors == (Issue(place, why),)
    assert caught.value.detail == f"{place or 'the body'} {why}"


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


@pytest.mark.parametrize("body", ['{"a": 1, "a": 1}', '[{"b": {"a": 1, "\\u0061": 2}}]'])
def test_a_name_twice_in_one_object_is_refused(body: str) -> None:
    with pytest.raises(MalformedBody, match="the name 'a' twice"):
        parse_json(body.encode())


@pytest.mark.parametrize(
    "body", ["18446744073709551616", "-18446744073709551616", "1e400", '{"a": [1' + "0" * 400 + "]}"]
)
def test_a_number_that_others_cannot_hold_is_refused(body: str) -> None:
    with pytest.raises(MalformedBody, match="too large a number"):
        parse_json(body.encode())


def test_the_depth_is_limited() -> None:
    deep = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert parse_json(deep.encode()) is not None
    with pytest.raises(MalformedBody, match="nested"):
        parse_json(f"[{deep}]".encode())


class Wish(BaseModel):
    size: int = 1

    @model_validator(mode="after")
    def _is_sound(self) -> Wish:
        if self.size < 0:
            raise ValueError("no size is less than 0")
        return self


@pytest.mark.parametrize(
    ("field", "issue"),
    [
        ({"size": -1}, Issue("", "no size is less than 0")),
        ({"size": "x"}, Issue("/size", "must be a valid integer, unable to parse string as an integer")),
    ],
)
def test_what_does_not_fit_is_told_without_words_about_the_code(field: dict[str, Any], issue: Issue) -> None:
    with pytest.raises(InvalidRequest) as refused:
        validated(Wish, field)
    assert refused.value.errors == (issue,)


def test_too_few_are_told_as_what_they_are() -> None:
    class Names(BaseModel):
        names: Annotated[tuple[str, ...], Field(min_length=1)]

    with pytest.raises(InvalidRequest) as refused:
        validated(Names, {"names": []})
    assert refused.value.errors == (Issue("/names", "must have at least 1 item, not 0"),)


def test_a_wrong_item_is_not_told_as_too_few() -> None:
    class Outputs(BaseModel):
        outputs: Annotated[tuple[Literal["mask"], ...], Field(min_length=1)]

    with pytest.raises(InvalidRequest) as refused:
        validated(Outputs, {"outputs": ["map"]})
    assert refused.value.errors == (Issue("/outputs/0", "must be 'mask'"),)


def test_names_are_counted_before_the_document_is_parsed() -> None:
    names = ", ".join(f'"{n}": 1' for n in range(MAX_NAMES))
    assert len(parse_json(f"{{{names}}}".encode())) == MAX_NAMES
    with pytest.raises(MalformedBody, match=f"more than {MAX_NAMES} names"):
        parse_json(f'{{{names}, "more": 1, no JSON'.encode())


@given(VALUES)
def test_what_stands_in_strings_is_neither_name_nor_depth(value: Any) -> None:
    text = json.dumps(["[{:" * MAX_NAMES, '\\"' * 7 + "\\", value, {'"[{:\\': "\\"}])
    assert parse_json(text.encode()) == json.loads(text)


def test_the_search_for_errors_ends_at_the_hundredth() -> None:
    class Strict(BaseModel):
        model_config = {"extra": "forbid"}
        names: dict[str, str]

    n = 10_000
    body = {"names": {f"m{i}": i for i in range(n)}, **{f"unknown{i}": i for i in range(n)}}
    begun_s = time.process_time()
    with pytest.raises(InvalidRequest) as refused:
        validated(Strict, body)
    assert len(refused.value.errors) == MAX_ISSUES
    assert time.process_time() - begun_s < 2  # 15 s where each error is compared with each other


@pytest.mark.parametrize(
    "value", [[0] * (SMALL + 1), {str(n): n for n in range(SMALL)}, [[[]] * 10] * SMALL, {"a": [{"b": 1}] * SMALL}]
)
def test_a_large_document_is_known_by_its_bytes_and_by_its_value(value: Any) -> None:
    assert not is_small(json.dumps(value).encode())
    assert not is_small_value(value)
    assert is_small(json.dumps({"text": "x" * 100_000}).encode())
    assert is_small_value({"text": "x" * 100_000, "more": [1] * 100})
