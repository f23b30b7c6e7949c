"""Defaults of requests, against the schemas that pydantic writes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from penstock.intake.request_defaults import MAX_DEFAULTS, defaults_of, filled


class Window(BaseModel):
    """An area."""

    kind: Literal["window"]
    left: int = 0


class Point(BaseModel):
    """A place."""

    kind: Literal["point"]
    radius: float = 1.5


class Band(BaseModel):
    """A band."""

    name: str
    scale: float = 1e-4


class Request(BaseModel):
    """A request with nested parts."""

    scene: str
    threshold: float = 0.5
    outputs: tuple[str, ...] = ("classes",)
    band: Band = Band(name="red")
    bands: list[Band] = []
    area: Annotated[Window | Point, Field(discriminator="kind")] | None = None
    either: Band | Window | None = None


SCHEMA = Request.model_json_schema()
ALL = {
    "/threshold": 0.5, "/outputs": ["classes"], "/band": {"name": "red", "scale": 1e-4}, "/bands": [], "/area": None,
    "/either": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("request_fields", "expected"),
    [
        ({}, ALL),
        ({"threshold": 0.1, "area": None}, {n: v for n, v in ALL.items() if n not in ("/threshold", "/area")}),
        (
            {"band": {"name": "nir"}, "bands": [{"name": "a"}, {"name": "b", "scale": 1}]},
            {n: v for n, v in ALL.items() if n not in ("/band", "/bands")}
            | {"/band/scale": 1e-4, "/bands/0/scale": 1e-4},
        ),
        ({"area": {"kind": "point"}}, {n: v for n, v in ALL.items() if n != "/area"} | {"/area/radius": 1.5}),
        ({"either": {"kind": "window"}}, {n: v for n, v in ALL.items() if n != "/either"} | {"/either/left": 0}),
    ],
    ids=["nothing given", "two given", "objects and lists", "a tagged union", "a union"],
)
def test_the_fields_that_a_request_leaves_out_are_found(
    request_fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    given = {"scene": "s", **request_fields}
    found = defaults_of(SCHEMA, given)
    assert found == expected
    assert Request.model_validate(filled(given, found)) == Request.model_validate(given)


def test_a_union_in_which_several_branches_fit_has_no_defaults() -> None:
    both = {"anyOf": [{"type": "object", "properties": {"a": {"default": n}}} for n in (1, 2)]}
    assert defaults_of({"properties": {"x": both}}, {"x": {}}) == {}


def test_the_number_of_defaults_is_bounded() -> None:
    many = {"scene": "s", "bands": [{"name": "a"}] * 1000}
    assert len(defaults_of(SCHEMA, many)) == MAX_DEFAULTS


@pytest.mark.parametrize("schema", [{}, {"properties": {"a": True}}, {"$ref": "#/$defs/none"}, {"items": False}])
def test_schemas_that_say_little_have_no_defaults(schema: dict[str, Any]) -> None:
    assert defaults_of(schema, {"b": 1}) == {}


def test_filling_changes_a_copy_and_keeps_what_is_given() -> None:
    given = {"a": {"b": 1}, "c": [{}]}
    assert filled(given, {"/a/b": 2, "/a/d": 3, "/c/0/e": 4}) == {"a": {"b": 1, "d": 3}, "c": [{"e": 4}]}
    assert given == {"a": {"b": 1}, "c": [{}]}
