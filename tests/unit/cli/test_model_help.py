"""Help of a model by its schema."""

from __future__ import annotations

from typing import Any

from penstock.cli.model_help import help_lines
from penstock.media_types import IMAGE_FILES, TEXT_FILES

MEDIA = {"type": "string", "format": "media"}


def lines(properties: dict[str, Any], required: tuple[str, ...] = ()) -> list[str]:
    schema = {"properties": properties, "required": list(required)}
    return list(help_lines("run thumbs.py:thumbnail", "Shrink an image", "In two words.", schema))


def row(properties: dict[str, Any], name: str, required: tuple[str, ...] = ()) -> list[str]:
    [found] = [line.split() for line in lines(properties, required) if line.startswith(f"  {name} ")]
    return found


def test_the_usage_names_files_and_the_title_stands_before_the_help() -> None:
    found = lines({"image": {**MEDIA, **IMAGE_FILES}, "size": {"type": "integer"}}, ("image",))
    assert found[:5] == [
        "Usage: penstock run thumbs.py:thumbnail [OPTIONS] IMAGE", "", "Shrink an image", "", "In two words.",
    ]  # fmt: skip
    assert "  IMAGE  a file (.png, .jpg, .jpeg, .webp" in "\n".join(found)
    assert not any("--image" in line for line in found)


def test_options_have_type_bounds_and_default() -> None:
    size = {"type": "integer", "minimum": 16, "maximum": 1024, "default": 128, "description": "Side in pixels"}
    assert " ".join(row({"size": size}, "--size")) == (
        "--size INTEGER Side in pixels; at least 16; at most 1024; default: 128"
    )
    assert row({"how": {"enum": ["fast", "good"]}}, "--how", ("how",)) == ["--how", "fast|good", "required"]
    optional = {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}], "default": None}
    assert row({"words": optional}, "--words") == ["--words", "TEXT,..."]
    assert row({"point_of": {"type": "object"}}, "--point-of") == ["--point-of", "JSON"]


def test_a_switch_stands_alone_and_a_text_may_come_from_a_file() -> None:
    assert row({"grey": {"type": "boolean", "default": False}}, "--grey,") == [
        "--grey,", "--no-grey", "default:", "false",
    ]  # fmt: skip
    assert "  TEXT  or a file (.txt, .md); required" in lines({"text": {"type": "string", **TEXT_FILES}}, ("text",))


def test_a_text_is_an_argument_too() -> None:
    found = lines({"text": {"type": "string"}}, ("text",))
    assert found[0] == "Usage: penstock run thumbs.py:thumbnail [OPTIONS] TEXT"
    assert {"  TEXT  required", "  --text TEXT  required"} <= set(found)
