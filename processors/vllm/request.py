"""The `input` of a plugin's jobs: the plugin's own data, as described in the model's record."""

from __future__ import annotations

from typing import Any, Self

from jsonschema import Draft202012Validator
from pydantic import BaseModel, GetJsonSchemaHandler, RootModel, TypeAdapter, model_validator
from pydantic_core import CoreSchema

from penstock.models import MediaReference
from penstock.processors.vllm.options import PluginFields

_MEDIUM = TypeAdapter(MediaReference).json_schema()


def request_for(fields: PluginFields) -> type[BaseModel]:
    """Return the request model of a plugin with these fields; its `root` is the plugin's data."""
    schema = {
        "title": "PluginData",
        "type": "object",
        "properties": {**dict.fromkeys(fields.media, _MEDIUM), **fields.free},
        "required": list(fields.media),
        "additionalProperties": False,
    }
    validator = Draft202012Validator(schema)

    class PluginData(RootModel[dict[str, Any]]):
        """The data of a vLLM plugin."""

        @classmethod
        def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler, /) -> dict[str, Any]:
            return schema

        @model_validator(mode="after")
        def _fits(self) -> Self:
            for error in validator.iter_errors(self.root):
                place = "/".join(map(str, error.absolute_path))
                raise ValueError(f"{place}: {error.message}" if place else error.message)
            return self

    return PluginData
