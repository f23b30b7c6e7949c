"""Looks for what annotations say and no job could keep: when a file is read, not at its first job."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

#: Names that a model may have, as in its record.
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "null": (type(None),),
    "array": (list,), "object": (dict,),
}  # fmt: skip
_BOUNDS: Mapping[str, Callable[[Any, Any], bool]] = {
    "minimum": lambda value, bound: bool(value >= bound), "exclusiveMinimum": lambda value, bound: bool(value > bound),
    "maximum": lambda value, bound: bool(value <= bound), "exclusiveMaximum": lambda value, bound: bool(value < bound),
    "minLength": lambda value, bound: len(value) >= bound, "maxLength": lambda value, bound: len(value) <= bound,
    "minItems": lambda value, bound: len(value) >= bound, "maxItems": lambda value, bound: len(value) <= bound,
    "pattern": lambda value, bound: re.search(bound, value) is not None,
}  # fmt: skip


def wrong_name(name: str) -> str | None:
    """Return what is wrong with the name of a model."""
    if _NAME.fullmatch(name):
        return None
    return (
        f"{name!r} cannot be the name of a model (a-z, 0-9, '.', '_' and '-', at most 64 characters): "
        'write `@penstock.model(name="...")`'
    )


def wrong_parameter(parameter: inspect.Parameter) -> str | None:
    """Return what is wrong with the kind of a parameter: values come by name."""
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return f"`*{parameter.name}` has no annotation per value: name each parameter"
    if parameter.kind is parameter.POSITIONAL_ONLY:
        return f"`{parameter.name}` has no name for its callers: remove `/`"
    return None


def nested_file(name: str, annotation: str, schema: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a type of JSON that has a file inside: only whole values and lists are files."""
    if '"format": "media"' not in json.dumps(schema):
        return None
    return (
        f"`{name}: {annotation}` has a file inside, which cannot be served: a file is a value of its own, as `Image`, "
        "or one of a list, as `list[Image]`"
    )


def fits(value: Any, schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> bool:
    """Return True if a default fits the schema of its parameter; the insides of lists and objects are not looked at."""
    if "$ref" in schema:
        schema = definitions.get(schema["$ref"].rpartition("/")[2], {})
    if "anyOf" in schema:
        return any(fits(value, one, definitions) for one in schema["anyOf"])
    if schema.get("format") == "media":
        return False
    if "enum" in schema:
        return value in schema["enum"]
    kind = schema.get("type")
    if kind is not None and (not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        return False
    return all(keeps(value, schema[word]) for word, keeps in _BOUNDS.items() if word in schema)


def yields(function: Any) -> bool:
    """Return True for a function that has a `yield`."""
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
