"""JSON documents as dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import Any

import pytest

from penstock.client.decoding import at, read


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    size: int
    colour: Colour = Colour.RED


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    name: str
    planted: datetime
    felled: date | None = None
    leaves: tuple[Leaf, ...] = ()
    best: Leaf | None = field(default=None, metadata=at("prizes.leaf"))
    height: float = 1.0
    raw: dict[str, Any] = field(metadata=at(""))


TREE = {"name": "oak", "planted": "2026-01-01T00:00:00Z"}


def test_values_have_the_types_of_their_fields() -> None:
    document = {
        **TREE, "felled": "2026-02-03", "leaves": [{"size": "3", "colour": "red"}], "prizes": {"leaf": {"size": 4}},
        "height": 2,
    }  # fmt: skip
    assert read(Tree, document) == Tree(
        name="oak", planted=datetime(2026, 1, 1, tzinfo=UTC), felled=date(2026, 2, 3), leaves=(Leaf(size=3),),
        best=Leaf(size=4), height=2.0, raw=document,
    )  # fmt: skip


@pytest.mark.parametrize("more", [{}, {"a field of tomorrow": 1}, {"height": None, "leaves": None, "prizes": None}])
def test_a_missing_or_null_field_has_its_default_and_unknown_fields_are_ignored(more: dict[str, Any]) -> None:
    found = read(Tree, {**TREE, **more})
    assert (found.felled, found.leaves, found.best, found.height) == (None, (), None, 1.0)


@pytest.mark.parametrize(
    ("document", "error"),
    [({"name": "oak"}, TypeError), ({**TREE, "planted": "once"}, ValueError),
     ({**TREE, "leaves": [{"size": 1, "colour": "blue"}]}, ValueError)],
)  # fmt: skip
def test_a_document_that_lacks_a_field_or_has_a_wrong_value_is_an_error(
    document: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        read(Tree, document)
