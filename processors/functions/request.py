"""The request of a function: its schema is that of the function's signature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from penstock.errors import InvalidInput, Issue

#: Suffixes of the files of each codec, for the form, the command line and drop rules.
_SUFFIXES = {
    "image": ("png", "jpg", "jpeg", "webp", "tif", "tiff", "bmp", "gif"),
    "audio": ("wav", "flac", "mp3", "ogg", "m4a", "mp4", "webm"),
    "video": ("mp4", "mov", "mkv", "webm", "avi"),
    "table": ("csv", "parquet", "jsonl", "ndjson"),
    "tensor": ("npy", "safetensors"),
}


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
                Issue("/".join(("/input", *map(str, error.absolute_path))), error.message)
                for error in validator.iter_errors(data)
            ]
            if wrong:
                raise InvalidInput("The input does not fit the function's parameters.", errors=wrong)
            return data

    return Request


def _for_people(signature: Mapping[str, Any]) -> dict[str, Any]:
    """Return the signature's schema with titles, and with the suffixes of files."""
    schema = dict(signature["schema"])
    schema["properties"] = {
        name: _with_suffixes({"title": name.replace("_", " ").capitalize(), **found})
        for name, found in schema["properties"].items()
    }
    if (batched := signature["batched"]) is not None:
        schema["properties"][batched] |= {"minItems": 1, "x-items": True}
    return {"title": signature["title"], **schema}


def _with_suffixes(found: dict[str, Any]) -> dict[str, Any]:
    for part in (found, found.get("items", {}), *found.get("anyOf", ())):
        name = part.pop("x-codec", None) if isinstance(part, dict) else None
        if suffixes := _SUFFIXES.get(name or ""):
            found["x-suffixes"] = list(suffixes)
    return found
