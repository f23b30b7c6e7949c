"""Defaults of a request: the fields that it leaves out, with the values that count for them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

#: Defaults of one request, at most: a list of thousands of objects may leave out fields in each.
MAX_DEFAULTS = 200


def defaults_of(schema: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """Return the fields that a request leaves out, by JSON pointer, with the schema's defaults: at most `MAX_DEFAULTS`.

    Follows `properties`, `items`, `allOf`, local `$ref`s, and a union's branch where only one fits the value's type.
    """
    return dict(islice(_missing(schema, schema, value, ""), MAX_DEFAULTS))


def filled(value: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a request with fields, by JSON pointer, that it leaves out; fields that it has stay."""
    found = _copy(value)
    for pointer, default in defaults.items():
        *path, name = pointer.split("/")[1:]
        place: Any = found
        for step in path:
            place = place[int(step)] if isinstance(place, list) else place[step]
        place.setdefault(name, default)
    return dict(found)


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _copy(inner) for name, inner in value.items()}
    return [_copy(inner) for inner in value] if isinstance(value, list) else value


def _missing(root: Mapping[str, Any], schema: Any, value: Any, pointer: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(schema, Mapping) or not isinstance(value, dict | list):
        return
    if "$ref" in schema:
        schema = root.get("$defs", {}).get(schema["$ref"].removeprefix("#/$defs/"), {})
    for part in (*schema.get("allOf", ()), *_branch(root, schema, value)):
        yield from _missing(root, part, value, pointer)
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _missing(root, schema.get("items"), item, f"{pointer}/{number}")
        return
    for name, part in schema.get("properties", {}).items():
        if name in value:
            yield from _missing(root, part, value[name], f"{pointer}/{name}")
        elif isinstance(part, Mapping) and "default" in part:
            yield f"{pointer}/{name}", part["default"]


def _branch(root: Mapping[str, Any], schema: Mapping[str, Any], value: Any) -> list[Any]:
    """Return the only branch of a union that fits a value; nothing where several do."""
    branches = [part for union in ("anyOf", "oneOf") for part in schema.get(union, ())]
    found = [part for part in branches if _fits(_resolved(root, part), value)]
    return found if len(found) == 1 else []


def _resolved(root: Mapping[str, Any], part: Any) -> Any:
    reference = part.get("$ref") if isinstance(part, Mapping) else None
    return part if reference is None else root.get("$defs", {}).get(reference.removeprefix("#/$defs/"), {})


def _fits(part: Any, value: Any) -> bool:
    """Return True where a value may be of a branch: it has the branch's type, and its constants where it has any."""
    kind = "object" if isinstance(value, dict) else "array"
    if not isinstance(part, Mapping) or part.get("type", kind) != kind:
        return False
    if not isinstance(value, dict):
        return True
    fields = part.get("properties", {})
    closed = part.get("additionalProperties") is False
    if not value.keys() >= set(part.get("required", ())) or (closed and not value.keys() <= fields.keys()):
        return False
    constants = {name: field["const"] for name, field in fields.items() if "const" in field}
    return all(value.get(name, field) == field for name, field in constants.items())
