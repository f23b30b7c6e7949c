"""Arguments of the command line, interpreted by the model's JSON Schema: `--param` values, files and texts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from penstock.client.field_texts import fields, kinds, put_text
from penstock.client.local_files import UsageProblem, media_fields, media_ways, shapes
from penstock.media_types import is_reference


def parse_params(pairs: Iterable[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's input from `key=value` texts; `a.b=v` goes into the object `a`.

    Lists are comma-separated or JSON, objects are JSON. Raises `UsageProblem` with the known names or the right form.
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise UsageProblem(f"--param {pair}: write it as key=value")
        try:
            put_text(found, name, text, schema)
        except UsageProblem as problem:
            raise UsageProblem(f"--param {problem}") from None
    return found


def take_options(arguments: Sequence[str], schema: Mapping[str, Any], *, plain: int = 0) -> tuple[list[str], list[str]]:
    """Split arguments into those without options, and `--name value` or `--name=value` as `name=value`.

    A field that is true or false may stand alone, as `--name` or `--no-name`. The last `plain` arguments are no
    options. Raises `UsageProblem` for an option that is no field of the model.
    """
    known_fields = fields(schema, schema)
    end = max(0, len(arguments) - plain)
    rest, pairs, left = list[str](), list[str](), list(arguments[:end])
    while left:
        word = left.pop(0)
        if word == "-" or not word.startswith("-"):
            rest.append(word)
            continue
        name, equals, value = word.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if not equals and (switched := _switched(word, left, known_fields, schema)) is not None:
            pairs.append(switched)
            continue
        if word.startswith("---") or not word.startswith("--") or name not in known_fields:
            known = ", ".join(f"--{field.replace('_', '-')}" for field in known_fields) or "none"
            raise UsageProblem(
                f"there is no option {word.partition('=')[0]!r}; the model's options: {known} "
                "(texts that begin with a dash stand after --)"
            )
        if not equals and not left:
            raise UsageProblem(f"{word} needs a value")
        pairs.append(f"{name}={value if equals else left.pop(0)}")
    return [*rest, *arguments[end:]], pairs


def _switched(
    word: str, following: Sequence[str], known: Mapping[str, Mapping[str, Any]], root: Mapping[str, Any]
) -> str | None:
    """Return `name=true` for `--name`, and `name=false` for `--no-name`, of a field that is true or false."""
    name = word.removeprefix("--").replace("-", "_")
    other = name.removeprefix("no_")
    for field, value in ((name, "true"), *([(other, "false")] if other != name and name not in known else [])):
        is_boolean = field in known and any("boolean" in kinds(shape) for shape in shapes(root, known[field]))
        if is_boolean and (value == "false" or not following or following[0] not in ("true", "false", "null")):
            return f"{field}={value}"
    return None


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
    listed = any("array" in kinds(shape) for shape in found)
    return {field: list(texts) if listed and (len(texts) > 1 or not alone) else " ".join(texts)}


def _takes_text(root: Mapping[str, Any], part: Mapping[str, Any]) -> bool:
    found = [inner for shape in shapes(root, part) for inner in (shape, *shapes(root, shape.get("items") or {}))]
    return any(map(_is_free_text, found))


def _is_free_text(shape: Mapping[str, Any]) -> bool:
    return "string" in kinds(shape) and not {"enum", "const", "format", "pattern"} & set(shape)
