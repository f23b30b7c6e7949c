"""The catalogue: `models.toml` read into `Model` records, and what the API knows of each model.

A model names its runner (how to compute) and its IO processor (how data goes in and comes out). Workers read the
records; the API reads only the `CatalogueEntry` that a worker exported from them, because
making one means importing the processor.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from penstock.errors import ConfigError

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]

#: A field of a processor's request that refers to media: `media://<upload>`, `s3://bucket/key` or `https://...`. The
#: format is how the API and the workers find the references in a request without knowing the processor.
MediaReference = Annotated[
    str,
    StringConstraints(min_length=1, max_length=2048),
    Field(
        json_schema_extra={"format": "media"},
        description="media://<upload>, s3://bucket/key (allowed buckets) or https://... (allowed hosts)",
    ),
]


class Record(BaseModel):
    """A frozen value read from outside; unknown keys are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Limits(Record):
    """What a model accepts, checked by the API and again after download. None = no limit."""

    max_bytes: int | None = Field(default=None, gt=0)
    max_pixels: int | None = Field(default=None, gt=0)
    max_items: int | None = Field(default=None, gt=0)


class Model(Record):
    """A model's record in the catalogue."""

    name: Name
    title: str
    description: str = ""
    runner: Name
    processor: Name
    #: A directory, or `package:<module>/<file>` for weights inside an installed package.
    source: str
    revision: str
    #: Of the weights file; checked before it is read.
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] | None = None
    device: str = "auto"
    dtype: Literal["float32", "bfloat16"] = "float32"
    queue: Name = "default"
    #: How many prompts of one shape may share a forward pass.
    max_batch: int = Field(default=1, gt=0)
    limits: Limits = Limits()
    execution_timeout_s: int = Field(default=3600, gt=0)
    queue_ttl_s: int = Field(default=86_400, gt=0)
    max_attempts: int = Field(default=5, gt=0)
    licence: str = ""
    citation: str = ""
    links: tuple[str, ...] = ()
    #: What only the processor and the runner understand; each validates its own table.
    options: Mapping[str, Any] = Field(default_factory=dict)


class Output(Record):
    """One of the results a model can make."""

    name: str
    media_type: str
    description: str
    default: bool = True


class CatalogueEntry(Record):
    """A model as the API serves it: everything needed to validate a request without importing its processor."""

    name: Name
    title: str
    description: str = ""
    revision: str
    queue: Name
    #: JSON Schema (2020-12) of the job's `input`; media references have the format `media`.
    input_schema: Mapping[str, Any]
    outputs: tuple[Output, ...]
    limits: Limits = Limits()
    execution_timeout_s: int
    queue_ttl_s: int
    max_attempts: int
    licence: str = ""
    citation: str = ""
    links: tuple[str, ...] = ()
    #: Why the model cannot be used, if it cannot: its processor or weights failed the check.
    problem: str | None = None


Catalogue = Mapping[str, Model]


def read_catalogue(*paths: Path) -> Catalogue:
    """Read the shipped catalogue and then the given files; a later record replaces an earlier one of its name.

    Raises `ConfigError` with the file and the field for anything that does not fit.
    """
    models: dict[str, Model] = {}
    shipped = files("penstock") / "catalogue" / "models.toml"
    for name, text in [("the shipped catalogue", shipped.read_text()), *((str(p), _read(p)) for p in paths)]:
        for model in _parse(name, text):
            models[model.name] = model
    return MappingProxyType(models)


def media_references(schema: Mapping[str, Any], value: Any) -> Iterator[tuple[str, str]]:
    """Yield (JSON pointer, reference) for every string in `value` that the schema calls media.

    Follows `properties`, `items`, `anyOf`/`oneOf`/`allOf` and local `$ref`s, which is what pydantic writes.
    """
    yield from _references(schema, schema, value, "")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise ConfigError(f"cannot read the catalogue {path}: {error.strerror}") from error


def _parse(name: str, text: str) -> Iterator[Model]:
    try:
        tables = tomllib.loads(text).get("models", {})
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name} is not TOML: {error}") from error
    for key, table in tables.items():
        try:
            yield Model(name=key, **table)
        except (ValidationError, TypeError) as error:
            raise ConfigError(f"{name}: model {key!r}: {error}") from error


def _references(
    root: Mapping[str, Any], schema: Mapping[str, Any], value: Any, pointer: str
) -> Iterator[tuple[str, str]]:
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    if isinstance(value, str) and schema.get("format") == "media":
        yield pointer, value
    for union in ("anyOf", "oneOf", "allOf"):
        for part in schema.get(union, ()):
            yield from _references(root, part, value, pointer)
    for name, part, inner in _inside(schema, value):
        yield from _references(root, part, inner, f"{pointer}/{name}")


def _inside(schema: Mapping[str, Any], value: Any) -> Iterator[tuple[str | int, Mapping[str, Any], Any]]:
    """Yield (name, schema, value) of an object's known properties or a list's items."""
    if isinstance(value, dict):
        yield from ((key, part, value[key]) for key, part in schema.get("properties", {}).items() if key in value)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        yield from ((index, schema["items"], item) for index, item in enumerate(value))
