"""The request of a function: its schema is that of the function's signature."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from penstock.errors import InvalidInput, Issue
from penstock.media_types import IMAGE_FILES, SUFFIXES, TEXT_FILES

#: Suffixes of the files of each codec, for the form, the command line and drop rules.
_SUFFIXES = {
    "image": IMAGE_FILES,
    "audio": {SUFFIXES: [".wav", ".flac", ".mp3", ".ogg", ".m4a", ".mp4", ".webm"]},
    "video": {SUFFIXES: [".mp4", ".mov", ".mkv", ".webm", ".avi"]},
    "table": {SUFFIXES: [".csv", ".parquet", ".jsonl", ".ndjson"]},
    "document": {SUFFIXES: [".pdf", *IMAGE_FILES[SUFFIXES]]},
    "tensor": {SUFFIXES: [".npy", ".safetensors"]},
}


#: Files of one parameter: a call's message holds `wire.MAX_ARRAYS` arrays.
MAX_FILES = 4000
#: Characters of a value that an error quotes.
MAX_VALUE_CHARS = 200


class FunctionRequest(BaseModel):
    """The arguments of a function by name."""

    model_config = ConfigDict(frozen=True, extra="allow")

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments that the request gives; the function has defaults for the others."""
        return self.model_extra or {}


def request_class(signature: Mapping[str, Any]) -> type[FunctionRequest]:
    """Return the request of a function, whose JSON Schema is that of its signature."""
    from jsonschema import Draft202012Validator

    schema = _for_people(signature)
    validator = Draft202012Validator(schema)

    class Request(FunctionRequest):
        @classmethod
        def model_json_schema(cls, *_: Any, **__: Any) -> dict[str, Any]:
            return schema

        @model_validator(mode="before")
        @classmethod
        def _fits(cls, data: Any) -> Any:
            wrong = [
                Issue("/".join(("/input", *map(str, error.absolute_path))), _said(error))
                for error in validator.iter_errors(data)
            ]
            if wrong:
                raise InvalidInput("The input does not fit the function's parameters.", errors=wrong)
            return data

    return Request


def _said(error: Any) -> str:
    """Return the message of a schema's error, for a union that of its closest member, without a long value."""
    from jsonschema.exceptions import best_match

    closest = best_match([error])
    value = repr(closest.instance)
    return str(closest.message.replace(value, "the value") if len(value) > MAX_VALUE_CHARS else closest.message)


def _for_people(signature: Mapping[str, Any]) -> dict[str, Any]:
    """Return the signature's schema with titles, and with the suffixes of files."""
    schema = dict(signature["schema"])
    schema["properties"] = {
        name: _with_suffixes({"title": name.replace("_", " ").capitalize(), **found})
        for name, found in schema["properties"].items()
    }
    for name, kind in signature["parameters"].items():
        part = schema["properties"][name]
        if name == signature["batched"]:
            part |= {"minItems": 1, "x-items": True}
        if kind["list"] and kind["codec"] != "json" and part.get("type") == "array":
            most = {} if name == signature["batched"] else {"maxItems": MAX_FILES}  # items have calls of their own
            schema["properties"][name] = _one_or_several({**most, **part})
    if not _media_in(schema) and (text := _only_text(schema)) is not None:
        schema["properties"][text] |= TEXT_FILES
    return {"title": signature["title"], **schema}


def _one_or_several(part: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a list of files, of which one may stand alone."""
    inner = ("type", "items", "minItems", "maxItems", "x-items")
    several = {"minItems": 1, **{name: value for name, value in part.items() if name in inner}}
    rest = {name: value for name, value in part.items() if name not in inner}
    return {**rest, "anyOf": [part["items"], several]}


def _media_in(schema: Mapping[str, Any]) -> bool:
    return '"format": "media"' in json.dumps(schema)


def _only_text(schema: Mapping[str, Any]) -> str | None:
    """Return the only required parameter, if it is a free text: a text file can be its value."""
    required = schema["required"]
    free = [name for name in required if schema["properties"][name].get("type") == "string"]
    return free[0] if len(required) == 1 and free else None


def _with_suffixes(found: dict[str, Any]) -> dict[str, Any]:
    for part in (found, found.get("items", {}), *found.get("anyOf", ())):
        name = part.pop("x-codec", None) if isinstance(part, dict) else None
        found |= _SUFFIXES.get(name or "", {})
    return found
