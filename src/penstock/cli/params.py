"""Arguments of the command line, interpreted by the model's JSON Schema: `--param` values, files and texts. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from penstock.client.file_fields import UsageProblem, media_ways
from penstock.client.local_files import media_fields, shapes
from penstock.jobs import is_reference

#: Types in the order in which they are tried: `1` is a number where the schema allows number and text.
_ORDER = ("null", "boolean", "integer", "number", "array", "object", "string")


def parse_params(pairs: Iterable[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's input from `key=value` texts; `a.b=v` goes into the object `a`.

    Lists are comma-separated or JSON, objects are JSON. Raises `UsageProblem` with the known names or the right form.
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise UsageProblem(f"--param {pair}: write it as key=value")
        _put(found, name.split("."), text, schema, schema, name)
    return found


def take_options(arguments: Sequence[str], schema: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Split arguments into those without options, and `--name value` or `--name=value` as `name=value`.

    Raises `UsageProblem` for an option that is no field of the model.
    """
    fields = _fields(schema, schema)
    rest, pairs, left = list[str](), list[str](), list(arguments)
    while left:
        word = left.pop(0)
        if word == "-" or not word.startswith("-"):
            rest.append(word)
            continue
        name, equals, value = word.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if word.startswith("---") or not word.startswith("--") or name not in fields:
            known = ", ".join(f"--{field.replace('_', '-')}" for field in fields) or "none"
            raise UsageProblem(f"there is no option {word.partition('=')[0]!r}; the model's options: {known}")
        if not equals and not left:
            raise UsageProblem(f"{word} needs a value")
        pairs.append(f"{name}={value if equals else left.pop(0)}")
    return rest, pairs


def text_field(schema: Mapping[str, Any]) -> str | None:
    """Return the field for free text: the first one that accepts text and is neither media nor a choice."""
    return next((name for name, part in schema.get("properties", {}).items() if _takes_text(schema, part)), None)


def means_texts(arguments: Sequence[str], schema: Mapping[str, Any], is_file: Callable[[str], bool]) -> bool:
    """Return True if the arguments are the model's text: it accepts text, and needs no files or gets others."""
    fields = media_fields(schema)
    required = {*schema.get("required", ()), *(name for way in media_ways(schema) for name in way)}
    if text_field(schema) is None or required & set(fields):
        return False
    return not (fields and arguments) or not all(is_file(argument) or is_reference(argument) for argument in arguments)


def assign_texts(texts: Sequence[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the text field with its value: a list of all texts if it accepts a list, else the joined words."""
    field = text_field(schema)
    if field is None or not texts:
        return {}
    found = list(shapes(schema, schema["properties"][field]))
    alone = any(_is_free_text(shape) for shape in found)
    listed = any("array" in _kinds(shape) for shape in found)
    return {field: list(texts) if listed and (len(texts) > 1 or not alone) else " ".join(texts)}


def _takes_text(root: Mapping[str, Any], part: Mapping[str, Any]) -> bool:
    found = [inner for shape in shapes(root, part) for inner in (shape, *shapes(root, shape.get("items") or {}))]
    return any(map(_is_free_text, found))


def _is_free_text(shape: Mapping[str, Any]) -> bool:
    return "string" in _kinds(shape) and not {"enum", "const", "format", "pattern"} & set(shape)


def _put(
    into: dict[str, Any], path: Sequence[str], text: str, schema: Mapping[str, Any], root: Mapping[str, Any], name: str
) -> None:
    fields = _fields(schema, root)
    head, rest = path[0], path[1:]
    if head not in fields:
        known = ", ".join(fields) or "none"
        raise UsageProblem(f"--param {name}: there is no field {head!r}; known fields: {known}")
    if rest:
        inner = into.setdefault(head, {})
        if not isinstance(inner, dict):
            raise UsageProblem(f"--param {name}: {head!r} already has a value")
        _put(inner, rest, text, fields[head], root, name)
    else:
        into[head] = parse_value(text, fields[head], root, name)


def _fields(schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {key: part for shape in shapes(root, schema) for key, part in shape.get("properties", {}).items()}


def parse_value(text: str, schema: Mapping[str, Any], root: Mapping[str, Any], name: str) -> Any:
    """Return the value of a text by the schema; raise `UsageProblem` if no type fits."""
    candidates = list(shapes(root, schema))
    kinds = {kind: shape for shape in reversed(candidates) for kind in _kinds(shape)}
    for kind in _ORDER:
        if kind in kinds:
            try:
                return _READERS[kind](text, kinds[kind], root, name)
            except ValueError:
                continue
    if not kinds:
        return _any(text)
    allowed = " or ".join(sorted(_CALLED[kind] for kind in kinds if kind != "null"))
    raise UsageProblem(f"--param {name}: {text!r} is not {allowed}")


def _kinds(shape: Mapping[str, Any]) -> list[str]:
    kind = shape.get("type")
    if kind is None:
        return ["string"] if "enum" in shape or "const" in shape else []
    return [kind] if isinstance(kind, str) else list(kind)


def _any(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _exactly(*types: type) -> Callable[..., Any]:
    def read(text: str, _shape: Any, _root: Any, _name: str) -> Any:
        value = json.loads(text)
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
