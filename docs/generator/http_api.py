"""The HTTP API reference, from `docs/openapi.json`: all operations, and all objects in responses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from docs.generator.comments import ROOT, Undocumented
from docs.generator.schema import Schema, words

Operation = Mapping[str, Any]
#: First digit of error statuses, which are strings in OpenAPI: `404`, `4XX`, `default`.
_REFUSED = "4"


@cache
def _document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((ROOT / "docs" / "openapi.json").read_text(encoding="utf-8"))
    return document


def operations() -> str:
    """Return all operations by tag. Raises `Undocumented` for an operation without description."""
    tags: dict[str, list[str]] = {}
    for path, verbs in _document()["paths"].items():
        for verb, operation in verbs.items():
            tags.setdefault(operation.get("tags", ["other"])[0], []).append(_operation(verb, path, operation))
    return "\n".join(f"## {tag.capitalize()}\n\n" + "\n".join(parts) for tag, parts in sorted(tags.items()))


def objects() -> str:
    """Return all response objects with their fields."""
    return "\n".join(_object(name, schema) for name, schema in sorted(_schemas().items()) if "properties" in schema)


def _schemas() -> Mapping[str, Schema]:
    schemas: Mapping[str, Schema] = _document()["components"]["schemas"]
    return schemas


def _operation(verb: str, path: str, operation: Operation) -> str:
    if not operation.get("description"):
        raise Undocumented(f"{verb.upper()} {path} has no description: give its function a docstring")
    parts = [
        f"### {verb.upper()} `{path}` {{ #{operation['operationId']} }}", operation["description"], _scope(operation),
        _parameters(operation), _body(operation), _answers(operation),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def _scope(operation: Operation) -> str:
    scopes = [scope for required in operation.get("security", ()) for scopes in required.values() for scope in scopes]
    return f"Scope: `{', '.join(scopes)}`" if scopes else "No API key required."


def _parameters(operation: Operation) -> str:
    rows = [
        [f"`{p['name']}`", p["in"], _words(p.get("schema", {})), p.get("description", "")]
        for p in operation.get("parameters", ())
    ]
    return _table(["parameter", "in", "takes", "meaning"], rows)


def _body(operation: Operation) -> str:
    content = operation.get("requestBody", {}).get("content", {})
    schema: Schema = next((found["schema"] for found in content.values()), {})
    if "properties" not in schema:
        return f"Body: {_words(schema)}." if schema else ""
    return _table(["body", "takes", "meaning"], _fields(schema))


def _answers(operation: Operation) -> str:
    rows = [
        [status, _content(answer), _meaning(answer)]
        for status, answer in sorted(operation["responses"].items())
        if status < _REFUSED
    ]
    refusals = ", ".join(status for status in sorted(operation["responses"]) if status >= _REFUSED)
    return f"{_table(['answer', 'body', 'meaning'], rows)}\n\n[Problems](errors.md): {refusals}"


def _meaning(answer: Mapping[str, Any]) -> str:
    """Return the description of a response; empty for FastAPI's default text."""
    text = str(answer.get("description", ""))
    return "" if text == "Successful Response" else text


def _content(answer: Mapping[str, Any]) -> str:
    return "; ".join(
        _words(found["schema"]) if kind == "application/json" and found.get("schema") else f"`{kind}`"
        for kind, found in answer.get("content", {}).items()
    )


def _object(name: str, schema: Schema) -> str:
    table = _table(["field", "holds", "meaning"], _fields(schema, required=False))
    return f"### {name} {{ #{name} }}\n\n{schema.get('description', '')}\n\n{table}\n"


def _fields(schema: Schema, *, required: bool = True) -> Iterator[list[str]]:
    for name, field in schema["properties"].items():
        mark = " **required**" if required and name in schema.get("required", ()) else ""
        yield [f"`{name}`{mark}", _words(field, schema), field.get("description", "")]


def _words(schema: Schema, root: Schema | None = None) -> str:
    return words(schema, lambda name: f"[{name}](#{name})", {**_schemas(), **(root or {}).get("$defs", {})})


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    """Return a table without its empty columns; an empty text without rows."""
    lines = [[_cell(cell) for cell in row] for row in rows]
    used = [column for column in range(len(head)) if any(line[column] for line in lines)]
    return "\n".join(
        f"| {' | '.join(line[column] for column in used)} |" for line in [head, ["---"] * len(head), *lines] if used
    )


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")
