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
#: Tags before all others.
_FIRST = ("jobs",)
#: Values of path parameters in examples; `$JOB` is the shell's.
_PLACES = {
    "job_id": "$JOB", "batch_id": "$BATCH", "endpoint_id": "$ENDPOINT", "delivery_id": "$DELIVERY", "name": "NAME",
    "upload_id": "$UPLOAD", "process_id": "csmask", "output": "classes", "path": "classes.tif",
}  # fmt: skip
#: Bodies of examples that say more than what is required.
_BODIES: Mapping[str, Any] = {
    "submit_job": {"model": "csmask", "input": {"scene": "s3://scenes/a.tif"}, "priority": "high"},
    "put_job": {"model": "csmask", "input": {"scene": "s3://scenes/a.tif"}},
    "submit_batch": {"model": "csmask", "requests": [{"custom_id": "a", "input": {"scene": "s3://scenes/a.tif"}}]},
    "execute_process": {"inputs": {"scene": {"href": "s3://scenes/a.tif"}}, "response": "document"},
    "change_endpoint": {"enabled": False},
    "create_upload": {"filename": "scene.tif", "content_type": "image/tiff", "size_bytes": 25_165_824},
}
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
    ordered = sorted(tags.items(), key=lambda item: (item[0] not in _FIRST, item[0]))
    return "\n".join(f"## {tag.capitalize()}\n\n" + "\n".join(parts) for tag, parts in ordered)


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
        _parameters(operation), _body(operation), _answers(operation), _example(verb, path, operation),
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


def _example(verb: str, path: str, operation: Operation) -> str:
    """Return a request by curl, with the body that the operation needs at least."""
    filled = re.sub(r"\{(\w+)\}", lambda found: _place(path, found[1]), path)
    method = "" if verb == "get" else f" -X {verb.upper()}"
    words = [f'curl{method} "$PENSTOCK_URL{filled}{_query(operation)}"']
    if operation.get("security"):
        words.append('-H "Authorization: Bearer $PENSTOCK_API_KEY"')
    content = operation.get("requestBody", {}).get("content", {})
    if "application/json" in content:
        schema = content["application/json"]["schema"]
        body = _BODIES.get(operation["operationId"], sample(schema, {**_schemas(), **schema.get("$defs", {})}))
        words += ["-H 'content-type: application/json'", f"-d '{json.dumps(body)}'"]
    return "```sh\n" + " \\\n     ".join(words) + "\n```"


def _place(path: str, name: str) -> str:
    if name == "name":
        named = {"models": "csmask", "queues": "default", "uploads": "scene.tif", "subscriptions": "lagoon"}
        return named.get(path.split("/")[2], "classes.tif")
    return _PLACES.get(name, name.upper())


def _query(operation: Operation) -> str:
    wanted = {p["name"]: sample(p["schema"], _schemas()) for p in operation.get("parameters", ()) if _is_needed(p)}
    return "?" + "&".join(f"{name}={value}" for name, value in wanted.items()) if wanted else ""


def _is_needed(parameter: Mapping[str, Any]) -> bool:
    return parameter["in"] == "query" and bool(parameter.get("required"))


def sample(schema: Schema, known: Mapping[str, Schema]) -> Any:
    """Return a value that fits a schema: its example, else the smallest one with the required fields."""
    if "$ref" in schema:
        return sample(known[schema["$ref"].rpartition("/")[2]], known)
    given = [schema.get("const"), schema.get("default"), *schema.get("examples", ()), *schema.get("enum", ())]
    if found := [value for value in given if value is not None]:
        return found[0]
    if unions := [*schema.get("anyOf", ()), *schema.get("oneOf", ())]:
        return sample(unions[0], known)
    match schema.get("type"):
        case "object":
            fields = schema.get("properties", {})
            return {name: sample(fields.get(name, {}), known) for name in schema.get("required", ())}
        case "array":
            return [sample(schema.get("items", {}), known)]
        case "integer" | "number":
            return schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
        case "boolean":
            return True
    return _TEXTS.get(str(schema.get("format")), "...")


#: Texts of a format, in examples.
_TEXTS = {"uri": "https://example.com/hook", "date-time": "2026-01-01T00:00:00Z"}


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
