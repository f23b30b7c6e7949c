"""JSON Schema as readable text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Schema = Mapping[str, Any]
#: Function from the name of a schema definition to its text, which is a link if it has its own section.
Name = Callable[[str], str]

_TYPES = {
    "string": "text", "integer": "whole number", "number": "number", "boolean": "`true` or `false`", "null": "null",
    "object": "object", "array": "list",
}  # fmt: skip
_FORMATS = {
    "date-time": "time (RFC 3339)", "uuid": "UUID", "path": "path", "password": "secret text",
    "media": "media reference",
}  # fmt: skip
_BOUNDS = {
    "exclusiveMinimum": "above {}", "minimum": "at least {}", "exclusiveMaximum": "below {}", "maximum": "at most {}",
    "minLength": "at least {} characters", "maxLength": "at most {} characters",
    "minItems": "at least {} of them", "maxItems": "at most {} of them", "pattern": "matching `{}`",
}  # fmt: skip


def words(schema: Schema, name: Name, definitions: Mapping[str, Schema]) -> str:
    """Return the schema as text, such as `whole number, above 0, or null`."""
    if "$ref" in schema:
        definition = schema["$ref"].rpartition("/")[2]
        named = definitions.get(definition, {})
        return words(named, name, definitions) if "enum" in named else name(definition)
    if "enum" in schema or "const" in schema:
        return " or ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema:
            return ", or ".join(dict.fromkeys(words(part, name, definitions) for part in schema[union]))
    return ", ".join([_kind(schema, name, definitions), *_bounds(schema)])


def _kind(schema: Schema, name: Name, definitions: Mapping[str, Schema]) -> str:
    kind = schema.get("type")
    if kind == "array" and schema.get("items"):
        return f"list of: {words(schema['items'], name, definitions)}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict) and schema["additionalProperties"]:
        return f"object of: {words(schema['additionalProperties'], name, definitions)}"
    if kind == "object" and schema.get("properties"):
        return f"object with {', '.join(f'`{field}`' for field in schema['properties'])}"
    if schema.get("format") in _FORMATS:
        return _FORMATS[schema["format"]]
    kinds = [kind] if isinstance(kind, str) else kind or []
    return ", or ".join(_TYPES[each] for each in kinds) or "anything"


def _bounds(schema: Schema) -> list[str]:
    return [text.format(_plain(schema[key])) for key, text in _BOUNDS.items() if key in schema]


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value
