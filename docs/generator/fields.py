"""Sections for the fields of a pydantic model: name, type, default and description."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from docs.generator.comments import Undocumented, comments_of
from docs.generator.schema import Schema, words


@dataclass(frozen=True)
class Sections:
    """Renderer of a model's fields as sections."""

    #: `validation` for input of users, `serialization` for output.
    mode: Literal["validation", "serialization"] = "validation"
    #: Prefix of environment variables; None for fields without one.
    env_prefix: str | None = None
    #: Prefix of each name and anchor, such as `s3.`.
    prefix: str = ""
    level: int = 3
    #: Anchors of models with their own sections on the page, by name.
    links: Mapping[str, str] | None = None

    def of(self, model: type[BaseModel]) -> str:
        """Return the sections of a model's fields, in order. Raises `Undocumented` for a field without description."""
        return "\n".join(self._section(model, name, field) for name, field in model.model_fields.items())

    def _section(self, model: type[BaseModel], name: str, field: FieldInfo) -> str:
        schema = model.model_json_schema(by_alias=False, mode=self.mode)
        text = comments_of(model).get(name) or field.description
        if not text:
            raise Undocumented(f"{model.__name__}.{name} has no description: give it a `#:` comment")
        label = self.prefix + (field.serialization_alias or name)
        facts = " · ".join(self._facts(name, field, schema))
        return f"{'#' * self.level} `{label}` {{ #{label} }}\n\n{facts}  \n{text}\n"

    def _facts(self, name: str, field: FieldInfo, schema: Schema) -> Iterator[str]:
        yield words(schema["properties"][name], self._named, schema.get("$defs", {}))
        if self.mode == "validation":
            yield "**required**" if field.is_required() else f"default {_default(schema['properties'][name], field)}"
        if self.env_prefix is not None:
            yield f"`{self.env_prefix}{name.upper()}`"

    def _named(self, definition: str) -> str:
        anchor = (self.links or {}).get(definition)
        return f"[{definition}](#{anchor})" if anchor else f"`{definition}`"


def _default(schema: Schema, field: FieldInfo) -> str:
    value = schema.get("default", field.get_default(call_default_factory=True, validated_data={}))
    if value is None:
        return "none"
    return "empty" if _is_empty(value) else f"`{json.dumps(value, default=str)}`"


def _is_empty(value: Any) -> bool:
    return isinstance(value, BaseModel | Mapping) or value in ((), [], "")
