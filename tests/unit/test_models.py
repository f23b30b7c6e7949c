"""Marks in the schemas of models, and the sentence for unknown models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.models import media_by_range, media_references, media_to_share, no_model


def test_marks_of_one_schema_are_not_those_of_the_next() -> None:
    """Schemas are known by their identity, and memory that is free again gets the same one."""
    for number in range(300):
        marked = number % 2 == 0
        part = {"type": "string", **({"format": "media", "x-shared": True, "x-by-range": "box"} if marked else {})}
        schema = {"type": "object", "properties": {"scene": part}}
        value: dict[str, Any] = {"scene": "media://up/a.tif", "box": 1}
        assert list(media_references(schema, value)) == ([("/scene", "media://up/a.tif")] if marked else [])
        assert media_to_share(schema, value) == media_by_range(schema, value) == ({value["scene"]} if marked else set())


def test_an_unknown_model_suggests_the_nearest_name_or_alias() -> None:
    catalogue = {"csmask": Named(("clouds",)), "stories": Named(())}
    assert no_model(["csmsk"], catalogue) == (
        "there is no model 'csmsk' (did you mean 'csmask'?); known models: csmask (clouds), stories"
    )
    assert "did you mean 'clouds'?" in no_model(["cloud"], catalogue)
    assert no_model(["x"], catalogue) == "there is no model 'x'; known models: csmask (clouds), stories"


@dataclass(frozen=True)
class Named:
    aliases: tuple[str, ...]
