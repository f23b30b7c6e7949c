# ruff: noqa: ARG001  (functions whose signatures are read, and which never run)
from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import pytest

import penstock
from penstock import Image, Table
from penstock.functions.checks import fits, wrong_name
from penstock.functions.signature import Unservable, read_signature


@dataclasses.dataclass
class Framed:
    image: Image
    width: int


@dataclasses.dataclass
class Tree:
    children: list[Tree]


def _file_in_a_dict(a: dict[str, Image]) -> str:
    raise AssertionError


def _file_in_a_list_of_lists(a: list[list[Image]]) -> str:
    raise AssertionError


def _file_in_a_dataclass(a: Framed) -> str:
    raise AssertionError


def _file_or_text(a: Image | str) -> str:
    raise AssertionError


def _image_or_table(a: Image | Table) -> str:
    raise AssertionError


def _wrong_default(a: int = "x") -> str:  # type: ignore[assignment]
    raise AssertionError


def _default_beyond_bounds(a: Annotated[int, penstock.Field(ge=5)] = 1) -> str:
    raise AssertionError


def _path_as_default(a: Image = "x.png") -> str:  # type: ignore[assignment]
    raise AssertionError


def _positional(a: int, /) -> str:
    raise AssertionError


def _of_itself(a: Tree) -> str:
    raise AssertionError


def _yields(a: int) -> str:  # type: ignore[misc]
    yield "a"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (_file_in_a_dict, r"`a: dict\[str, Image\]` has a file inside"),
        (_file_in_a_list_of_lists, "has a file inside"),
        (_file_in_a_dataclass, "`a: Framed` has a file inside"),
        (_file_or_text, "has a file inside"),
        (_image_or_table, "has a file inside"),
        (_wrong_default, "the default of `a`, 'x', does not fit int$"),
        (_default_beyond_bounds, "the default of `a`, 1, does not fit int$"),
        (_path_as_default, "the default of `a`, 'x.png', does not fit Image$"),
        (_positional, "remove `/`"),
        (_of_itself, "Tree contains itself: write a pydantic model"),
        (_yields, r"it yields: write `-> Iterator\[str\]`"),
    ],
)
def test_what_no_job_could_keep_is_refused_when_the_file_is_read(function: Any, said: str) -> None:
    with pytest.raises(Unservable, match=rf"^test_checks\.py:\d+: it: .*{said}"):
        read_signature("it", penstock.model(function))


def test_names_that_no_record_has_are_refused() -> None:
    def size(a: int) -> int:
        raise AssertionError

    with pytest.raises(Unservable, match=r"'größe' cannot be the name of a model .*write `@penstock\.model\(name="):
        read_signature("größe", penstock.model(size))
    with pytest.raises(Unservable, match="'My Model' cannot"):
        read_signature("size", penstock.model(name="My Model")(size))
    assert wrong_name("size-2.b_c") is None


def test_batches_need_a_parameter() -> None:
    def nothing() -> list[int]:
        raise AssertionError

    with pytest.raises(Unservable, match="there is no parameter"):
        read_signature("it", penstock.model(max_batch=4)(nothing))


def test_a_default_of_none_makes_a_parameter_optional() -> None:
    def greet(name: str = None, image: Image = None) -> str:  # type: ignore[assignment]  # noqa: RUF013
        raise AssertionError

    found = read_signature("greet", penstock.model(greet))
    assert found.schema["properties"]["name"] == {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
    assert found.parameters["image"].codec == "image"
    assert found.schema["required"] == []


def test_defaults_that_fit_are_kept() -> None:
    def plain(
        kind: Literal["a", 2] = 2, rate: Annotated[float, penstock.Field(gt=0)] = 1, images: list[Image] = [],  # noqa: B006
        names: list[str] | None = None, text: Annotated[str, penstock.Field(pattern="^a", max_length=3)] = "ab",
    ) -> Iterator[str]:  # fmt: skip
        raise AssertionError

    schema = read_signature("plain", penstock.model(plain)).schema
    assert {name: part["default"] for name, part in schema["properties"].items()} == {
        "kind": 2, "rate": 1, "images": [], "names": None, "text": "ab",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        (True, {"type": "integer"}, False),
        (1, {"type": "number", "maximum": 1}, True),
        (1, {"type": "number", "exclusiveMaximum": 1}, False),
        ("abcd", {"type": "string", "maxLength": 3}, False),
        ("b", {"type": "string", "pattern": "^a"}, False),
        ([], {"type": "array", "minItems": 1}, False),
        ({"a": 1}, {"$ref": "#/$defs/A"}, True),
        (1, {"$ref": "#/$defs/A"}, False),
        (3, {}, True),
    ],
)
def test_defaults_are_compared_with_the_schema(value: Any, schema: dict[str, Any], expected: bool) -> None:
    assert fits(value, schema, {"A": {"type": "object"}}) is expected
