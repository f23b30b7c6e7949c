"""Marks in the JSON Schema of raster requests, which the API and the worker read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from pydantic import Field

from penstock.media_types import BESIDE, SCENE_FILES
from penstock.models import BY_RANGE, LINKS, MAY_LACK, SHARED

FORMS = "media://<upload>, s3://bucket/key (allowed buckets) or https://... (allowed hosts)"


def without_default(schema: dict[str, Any]) -> None:
    """Leave the default `null` out of the schema."""
    schema.pop("default", None)


def with_links(schema: dict[str, Any]) -> None:
    """Mark a STAC item: the worker fetches its assets if the processor asks for them."""
    schema.pop("default", None)
    schema[LINKS] = True


def optional(description: str, mark: Callable[[dict[str, Any]], None] = without_default, **bounds: Any) -> Any:
    """Return a field that may be left out, whose default the schema does not show."""
    return Field(default=None, description=description, json_schema_extra=mark, **bounds)


def dates_of_a_series(schema: dict[str, Any]) -> None:
    """Mark dates: files of a series may be missing, and only their dates fail."""
    schema.pop("default", None)
    schema[MAY_LACK] = "series"


def with_choice(schema: dict[str, Any]) -> None:
    """Write a single choice as one of a list, so that forms offer it."""
    schema.pop("default", None)
    schema["enum"] = [schema.pop("const")]


def by_range(schema: dict[str, Any]) -> None:
    """Mark media of which only the area is read, if the request has one, and in parts only the rows of a part."""
    schema.pop("default", None)
    schema |= {BY_RANGE: "area", SHARED: True}


def with_beside(schema: dict[str, Any]) -> None:
    """Mark media as `by_range` does; clients send the files beside a local file in the field `beside`."""
    by_range(schema)
    schema |= {BESIDE: "beside", **SCENE_FILES}


def item_needs(array: str, item: str, field: str, why: str) -> dict[str, Any]:
    """Return the JSON Schema of an object whose array has an item only beside a field.

    `why` is the error's sentence.
    """
    without = {"not": {"contains": {"const": item}}, "description": why}
    return {"if": {"not": {"required": [field]}}, "then": {"properties": {array: without}}}


def only_one_of(*names: str, apart: Mapping[str, tuple[str, ...]] = MappingProxyType({})) -> dict[str, Any]:
    """Return the JSON Schema of an object with exactly one of these properties; `apart` lists further exclusions."""
    shut_out = {name: [*(set(names) - {name}), *apart.get(name, ())] for name in names}
    dependent: dict[str, Any] = {}
    for name, others in shut_out.items():
        dependent |= absent(name, *sorted(others))
    return {"anyOf": [{"required": [name]} for name in names], "dependentSchemas": dependent}


def absent(name: str, *others: str) -> dict[str, Any]:
    """Return the entry of `dependentSchemas` that forbids other properties beside this one."""
    return {name: {"properties": {other: {"not": {}} for other in others}}}
