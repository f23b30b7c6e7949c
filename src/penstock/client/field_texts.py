"""Texts of people as values of a model's fields, by its JSON Schema. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from penstock.client.local_files import UsageProblem, shapes

#: Reads the text of a field by the field's schema, the whole schema, and the field's name.
Read = Callable[[str, Mapping[str, Any], Mapping[str, Any], str], Any]
#: Types in the order in which they are tried: `1` is a number where the schema allows number and text.
_ORDER = ("null", "boolean", "integer", "number", "array", "object", "string")


def put_text(
    into: dict[str, Any], name: str, text: str, schema: Mapping[str, Any], *, read: Read | None = None
) -> None:
    """Put the value of a text into a job's input; `a.b` is the field `b` of the object `a`.

    Lists are comma-separated or JSON, objects are JSON. Raises `UsageProblem` with the known names or the right form.
    """
    path, read = name.split("."), read or parse_value
    known, inner = fields(schema, schema), into
    for at, head in enumerate(path):
        if head not in known:
            raise UsageProblem(f"{name}: there is no field {head!r}; known fields: {', '.join(known) or 'none'}")
        if at == len(path) - 1:
            inner[head] = read(text, known[head], schema, name)
            return
        found = inner.setdefault(head, {})
        if not isinstance(found, dict):
            raise UsageProblem(f"{name}: {head!r} already has a value")
        known, inner = fields(known[head], schema), found


def fields(schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the fields of an object's schema."""
    return {key: part for shape in shapes(root, schema) for key, part in shape.get("properties", {}).items()}


def kinds(shape: Mapping[str, Any]) -> list[str]:
    """Return the JSON types of a schema without alternatives."""
    kind = shape.get("type")
    if kind is None:
        return ["string"] if "enum" in shape or "const" in shape else []
    return [kind] if isinstance(kind, str) else list(kind)


def parse_value(text: str, schema: Mapping[str, Any], root: Mapping[str, Any], name: str) -> Any:
    """Return the value of a text by the schema; raise `UsageProblem` if no type fits."""
    candidates = list(shapes(root, schema))
    if picked := chosen(text, candidates):
        return picked[0]
    found = {kind: shape for shape in reversed(candidates) for kind in kinds(shape)}
    for kind in _ORDER:
        if kind in found:
            try:
                return _READERS[kind](text, found[kind], root, name)
            except (ValueError, RecursionError):
                continue
    if not found:
        return _any(text)
    allowed = " or ".join(sorted(_CALLED[kind] for kind in found if kind != "null"))
    raise UsageProblem(f"{name}: {text!r} is not {allowed}")


def chosen(text: str, candidates: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Return the choice of an `enum` or `const` that a text names, as `10` names the number 10; empty for none."""
    choices = [one for shape in candidates for one in (*shape.get("enum", ()), *_const(shape))]
    return [one for one in choices if text == (one if isinstance(one, str) else json.dumps(one))][:1]


def _const(shape: Mapping[str, Any]) -> tuple[Any, ...]:
    return (shape["const"],) if "const" in shape else ()


def _any(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _refused(text: str) -> Any:
    raise ValueError(text)


def _exactly(*types: type) -> Callable[..., Any]:
    def read(text: str, _shape: Any, _root: Any, _name: str) -> Any:
        value = json.loads(text, parse_constant=_refused)
        if type(value) not in types:
            raise ValueError(text)
        return value

    return read


def _array(text: str, shape: Mapping[str, Any], root: Mapping[str, Any], name: str) -> Any:
    if text.lstrip().startswith("["):
        value = json.loads(text)
        if not isinstance(value, list):
            raise ValueError(text)
        return value
    items = shape.get("items") or {}
    return [parse_value(part.strip(), items, root, name) for part in text.split(",") if part.strip()]


def _string(text: str, _shape: Any, _root: Any, _name: str) -> str:
    if len(text) > 1 and text.startswith('"') and text.endswith('"'):
        return str(json.loads(text))
    return text


_READERS: Mapping[str, Callable[..., Any]] = {
    "null": _exactly(type(None)),
    "boolean": _exactly(bool),
    "integer": _exactly(int),
    "number": _exactly(int, float),
    "array": _array,
    "object": _exactly(dict),
    "string": _string,
}
_CALLED = {
    "null": "null",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "array": "a list (a,b,c or JSON)",
    "object": "a JSON object",
    "string": "a text",
}
