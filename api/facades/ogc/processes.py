"""Process descriptions of OGC API - Processes, from catalogue entries. Pure.

The standard uses the schemas of OpenAPI 3.0, the models JSON Schema 2020-12. The translation inlines references and
turns `null` into `nullable` and exclusive bounds into flags. Keywords without a counterpart are omitted; requests are
still checked against the model's full schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from penstock.api.facades.ogc.schemas import (
    InputDescription,
    OgcLink,
    OutputDescription,
    ProcessDescription,
    ProcessSummary,
)
from penstock.intake.ogc import JSON_TYPE, RELATION
from penstock.media_types import essence
from penstock.models import CatalogueEntry, Output

#: The input property that selects a model's outputs. The execute request's `outputs` replace it.
OUTPUTS = "outputs"
#: Depth of inlined references, which ends recursive schemas.
MAX_DEPTH = 12

#: Keywords with the same meaning in both. `_inner` translates keywords that hold schemas.
_SAME = frozenset(
    {
        "title", "description", "multipleOf", "maximum", "minimum", "maxLength", "minLength", "pattern", "maxItems",
        "minItems", "uniqueItems", "maxProperties", "minProperties", "type", "default", "readOnly", "writeOnly",
        "deprecated", "contentMediaType", "contentEncoding", "format",
    }
)  # fmt: skip
_UNIONS = ("anyOf", "oneOf", "allOf")
_NULL = {"type": "null"}

Schema = Mapping[str, Any]

#: The output of models that declare none.
ANSWER = Output(name="answer", media_type="application/json", description="The answer.")


def summary(entry: CatalogueEntry, base_url: str) -> ProcessSummary:
    """Return the summary of a process for a list."""
    return ProcessSummary(**_common(entry, base_url))


def description(entry: CatalogueEntry, base_url: str) -> ProcessDescription:
    """Return the description of a process with its inputs and outputs."""
    return ProcessDescription(
        **_common(entry, base_url),
        inputs={name: _input(entry, name) for name in input_names(entry)},
        outputs={output.name: _output(output) for output in outputs_of(entry)},
    )


def outputs_of(entry: CatalogueEntry) -> tuple[Output, ...]:
    """Return the outputs of a process; a model that makes no files has one, its answer."""
    return entry.outputs or (ANSWER,)


def input_names(entry: CatalogueEntry) -> tuple[str, ...]:
    """Return the names of a process's inputs."""
    hidden = {OUTPUTS} if chooses_outputs(entry) else set()
    return tuple(name for name in entry.input_schema.get("properties", {}) if name not in hidden)


def chooses_outputs(entry: CatalogueEntry) -> bool:
    """Return True where the model's input has a list that selects outputs."""
    found = resolved(entry.input_schema, entry.input_schema.get("properties", {}).get(OUTPUTS, {}))
    names = {output.name for output in entry.outputs}
    return bool(names) and found.get("type") == "array" and names <= set(found.get("items", {}).get("enum", ()))


def resolved(root: Schema, schema: Schema) -> Schema:
    """Return a schema with its reference followed and a `null` alternative removed."""
    if "$ref" in schema:
        beside = {name: found for name, found in schema.items() if name != "$ref"}
        return resolved(root, {**root["$defs"][schema["$ref"].removeprefix("#/$defs/")], **beside})
    branches = [part for part in schema.get("anyOf", ()) if part != _NULL]
    if len(branches) == 1 and len(schema["anyOf"]) == 2:
        beside = {name: found for name, found in schema.items() if name not in ("anyOf", "default")}
        return resolved(root, {**branches[0], **beside})
    return schema


def occurrences(root: Schema, schema: Schema, *, required: bool) -> tuple[int, int | Literal["unbounded"]]:
    """Return the minimum and maximum occurrences of an input; a list may occur several times."""
    found = resolved(root, schema)
    if found.get("type") != "array":
        return int(required), 1
    return found.get("minItems", 0) if required else 0, found.get("maxItems", "unbounded")


def openapi_schema(root: Schema, schema: Any, depth: int = 0) -> dict[str, Any]:
    """Return a JSON Schema as an OpenAPI 3.0 schema."""
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return {}
    plain = resolved(root, schema)
    made = {name: found for name, found in plain.items() if name in _SAME and not isinstance(found, list)}
    if made.get("format") == "media":
        made["format"] = "uri"
    if any(_NULL in holder.get(union, ()) for holder in (schema, plain) for union in _UNIONS):
        made["nullable"] = True
    return made | _bounds(plain) | _choices(plain) | _inner(root, plain, depth + 1)


def _input(entry: CatalogueEntry, name: str) -> InputDescription:
    root = entry.input_schema
    schema = root["properties"][name]
    least, most = occurrences(root, schema, required=name in root.get("required", ()))
    found = resolved(root, schema)
    each = found if found.get("type") != "array" else found.get("items", {})
    made = openapi_schema(root, {key: part for key, part in resolved(root, each).items() if key != "default"})
    title = found.get("title") or name
    return InputDescription(
        title=title, description=found.get("description"), minOccurs=least, maxOccurs=most, schema=made
    )


def _output(output: Output) -> OutputDescription:
    kind = essence(output.media_type)
    schema: dict[str, Any] = {"type": "string", "contentMediaType": output.media_type}
    if kind == JSON_TYPE or kind.endswith("+json"):
        schema["type"] = "object"
    elif not kind.startswith("text/"):
        schema["contentEncoding"] = "binary"
    return OutputDescription(title=output.name, description=output.description or None, schema=schema)


def _common(entry: CatalogueEntry, base_url: str) -> dict[str, Any]:
    here = f"{base_url}/ogc/processes/{entry.name}"
    links = [
        OgcLink(href=here, rel="self", type=JSON_TYPE, title="The description"),
        OgcLink(href=f"{here}/execution", rel=f"{RELATION}execute", title="Execute it (POST)"),
        *(OgcLink(href=href, rel="about") for href in entry.links),
    ]
    return {
        "id": entry.name,
        "version": entry.revision,
        "title": entry.title,
        "description": entry.description.strip() or None,
        "jobControlOptions": ["sync-execute", "async-execute", "dismiss"],
        "outputTransmission": ["value", "reference"],
        "links": links,
    }


def _bounds(schema: Schema) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for flag, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if flag in schema:
            made |= {bound: schema[flag], flag: True}
    return made


def _choices(schema: Schema) -> dict[str, Any]:
    choices = [schema["const"]] if "const" in schema else list(schema.get("enum", ()))
    made: dict[str, Any] = {"enum": choices} if choices else {}
    if schema.get("examples"):
        made["example"] = schema["examples"][0]
    if schema.get("required"):
        made["required"] = list(schema["required"])
    return made


def _inner(root: Schema, schema: Schema, depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for union in _UNIONS:
        parts = [part for part in schema.get(union, ()) if part != _NULL]
        if parts:
            made[_union(union, parts)] = [openapi_schema(root, part, depth) for part in parts]
    for name in ("items", "not"):
        if name in schema:
            made[name] = openapi_schema(root, schema[name], depth)
    if "properties" in schema:
        made["properties"] = {name: openapi_schema(root, part, depth) for name, part in schema["properties"].items()}
    more = schema.get("additionalProperties")
    if more is not None:
        made["additionalProperties"] = more if isinstance(more, bool) else openapi_schema(root, more, depth)
    return made


def _union(word: str, parts: list[Any]) -> str:
    """Return `oneOf` in place of `anyOf` where the types exclude each other, as the standard requires."""
    types = [part.get("type") if isinstance(part, Mapping) else None for part in parts]
    apart = all(isinstance(kind, str) for kind in types) and len(set(types)) == len(types)
    return "oneOf" if word == "anyOf" and apart and not {"integer", "number"} <= set(types) else word
