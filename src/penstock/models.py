"""The catalogue: `models.toml` read into `Model` records, and what the API knows of each model.

A model names its runner (how to compute) and its IO processor (how data goes in and comes out). Workers read the
records; the API reads only the `CatalogueEntry` that a worker exported from them, because
making one means importing the processor.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from penstock.documents import wrong_fields
from penstock.errors import ConfigError

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
#: What a model is called elsewhere, such as `organisation/Name` on the hub.
Alias = Annotated[
    str, StringConstraints(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,63}/)?[A-Za-z0-9][A-Za-z0-9._-]{0,95}$")
]
#: Of a model's name in a request, which may be an alias.
MAX_NAME_CHARS = 161

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:")

#: 64 lower-case hexadecimal digits.
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

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

#: Marks a list in a processor's request as the job's items: `Annotated[list[str], Field(min_length=1), ITEMS]`; or a
#: number as how many there are to be. In the schema that the API serves it takes no more than the model's `max_items`.
ITEMS = Field(json_schema_extra={"x-items": True})

#: Marks a number of steps in the same way: no more than the model's `max_steps`.
STEPS = Field(json_schema_extra={"x-steps": True})


#: Marks a processor's request, or a field of one, as raw tensors or embeddings, which only tenants with `raw_tensors`
#: may send: a key of `json_schema_extra`.
TENSORS = "x-tensors"


class Record(BaseModel):
    """A frozen value read from outside; unknown keys are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Limits(Record):
    """What a model accepts. None = no limit.

    The API checks `max_bytes` and `max_items` before it accepts a job; the rest is seen once the media are there, and
    checked by the processor.
    """

    #: Of one medium.
    max_bytes: int | None = Field(default=None, gt=0)
    #: Of one image or scene.
    max_pixels: int | None = Field(default=None, gt=0)
    #: Of one scene.
    max_tiles: int | None = Field(default=None, gt=0)
    #: Of one recording or film.
    max_seconds: float | None = Field(default=None, gt=0)
    #: Of one job: its media, or its texts.
    max_items: int | None = Field(default=None, gt=0)
    #: Of one text.
    max_tokens: int | None = Field(default=None, gt=0)
    #: Of what is made step by step.
    max_steps: int | None = Field(default=None, gt=0)


class Step(Record):
    """A post-processor of a model."""

    #: Which one, by its entry point.
    use: Name
    #: What it understands, and checks.
    options: Mapping[str, Any] = Field(default_factory=dict)


class Model(Record):
    """A model's record in the catalogue."""

    #: The name of its table: `[models.NAME]`.
    name: Name
    #: A few words for people.
    title: str
    #: More of them: what it was made for, and what it must not be used for.
    description: str = ""
    #: Other names that requests may use. The job keeps `name`.
    aliases: tuple[Alias, ...] = ()
    #: What computes: `transformers`, `torch`, `onnx`, `rapidocr`, `lightgbm`.
    runner: Name
    #: What turns input into prompts and outputs into a result, by its entry point.
    processor: Name
    #: What changes outputs before the processor sees them, one after the other.
    post_processors: tuple[Step, ...] = ()
    #: A file or directory, `package:<module>/<path>` inside an installed package, `s3://bucket/prefix`, or
    #: `hf://organisation/name` at the `revision` of the Hugging Face hub.
    source: str
    #: Which one it is: yours to name, or the hub's commit. Results say which one made them.
    revision: str
    #: Of the weights, where the source is one file; checked before it is read.
    sha256: Sha256 | None = None
    #: The same for a directory: the hash of each file that matters, by its path inside.
    files: Mapping[str, Sha256] = Field(default_factory=dict)
    #: `auto`, `cpu`, `cuda`, or one of several: `cuda:1`.
    device: str = "auto"
    #: What it computes in; `bfloat16` by autocast.
    dtype: Literal["float32", "bfloat16"] = "float32"
    #: Where its jobs wait; workers serve the queues that their settings name. Models may share one.
    queue: Name = "default"
    #: How many prompts of one shape may share a forward pass.
    max_batch: int = Field(default=1, gt=0)
    #: What their cost may add up to, in the model's unit of work (see `Prompt.cost`). None = `max_batch` alone decides.
    max_batch_cost: int | None = Field(default=None, gt=0)
    #: Whether a worker runs the processor's dummy through the model before it takes jobs.
    warm_up: bool = True
    #: What it accepts.
    limits: Limits = Limits()
    #: Whether a job that asks for what another job of its tenant had gets that job's result, without a forward pass.
    cache: bool = False
    #: How long the processor may be silent: between two prompts, or between an output and the next artifact.
    io_timeout_s: float = Field(default=600, gt=0)
    #: How long an attempt may run, where the request does not say it.
    execution_timeout_s: int = Field(default=3600, gt=0)
    #: How long a job may wait, where the request does not say it.
    queue_ttl_s: int = Field(default=86_400, gt=0)
    #: How often a job is begun in all, where attempts fail with what another try may help.
    max_attempts: int = Field(default=5, gt=0)
    #: Shown with the model, as `citation` and `links` are.
    licence: str = ""
    #: What to cite.
    citation: str = ""
    #: Where to read more.
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
    aliases: tuple[Alias, ...] = ()
    revision: str
    queue: Name
    #: What a model can be asked for in the words of others' interfaces follows from it.
    processor: str = ""
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
    #: Whether a worker is warmed up. Jobs are accepted all the same, and wait.
    ready: bool = True


Catalogue = Mapping[str, Model]


class Named(Protocol):
    """A record of a catalogue, whichever side reads it."""

    @property
    def name(self) -> str:
        """Its own name."""
        ...

    @property
    def aliases(self) -> tuple[str, ...]:
        """Other names of it."""
        ...


NamedT = TypeVar("NamedT", bound=Named)


def read_catalogue(*paths: Path) -> Catalogue:
    """Read the shipped catalogue and then the given files; a later record replaces an earlier one of its name.

    A `source` that is a relative path starts at the folder of its catalogue. Raises `ConfigError` with the file and the
    field for anything that does not fit, and for a name that two models claim.
    """
    models: dict[str, Model] = {}
    shipped = files("penstock") / "catalogue" / "models.toml"
    for model in _parse("the shipped catalogue", shipped.read_text()):
        models[model.name] = model
    for path in paths:
        for model in _parse(str(path), _read(path)):
            models[model.name] = model.model_copy(update={"source": _from_folder(model.source, path.parent)})
    _refuse_clashes(models)
    return MappingProxyType(models)


def find(catalogue: Mapping[str, NamedT], name: str) -> NamedT | None:
    """Return the model of this name or alias; None if there is none. A name comes before an alias."""
    if name in catalogue:
        return catalogue[name]
    return next((catalogue[key] for key in sorted(catalogue) if name in catalogue[key].aliases), None)


def known_names(catalogue: Mapping[str, NamedT]) -> str:
    """Say which models there are, aliases in brackets: `csmask (clouds), stories`."""
    aliases = {name: f" ({', '.join(model.aliases)})" if model.aliases else "" for name, model in catalogue.items()}
    return ", ".join(f"{name}{aliases[name]}" for name in sorted(catalogue)) or "none"


def media_references(schema: Mapping[str, Any], value: Any) -> Iterator[tuple[str, str]]:
    """Yield (JSON pointer, reference) for every string in `value` that the schema calls media.

    Follows `properties`, `items`, `anyOf`/`oneOf`/`allOf` and local `$ref`s, which is what pydantic writes.
    """
    for place, part, found in _places(schema, schema, value, ""):
        if isinstance(found, str) and part.get("format") == "media":
            yield place, found


def tensor_places(schema: Mapping[str, Any], value: Any) -> Iterator[str]:
    """Yield the JSON pointer of everything in `value` that the schema marks as raw tensors."""
    for place, part, found in _places(schema, schema, value, ""):
        if found is not None and part.get(TENSORS) is True:
            yield place


def limited(schema: Any, limits: Limits) -> Any:
    """Return a schema in which what is marked as `ITEMS` or `STEPS` has the model's `max_items` or `max_steps`."""
    if isinstance(schema, list):
        return [limited(part, limits) for part in schema]
    if not isinstance(schema, dict):
        return schema
    marks = {"x-items": limits.max_items, "x-steps": limits.max_steps}
    inside = {name: limited(part, limits) for name, part in schema.items() if name not in marks}
    most = next((marks[mark] for mark in marks if schema.get(mark) is True), None)
    if most is None:
        return inside
    keyword = "maximum" if inside.get("type") == "integer" else "maxItems"
    return {**inside, keyword: min(most, inside.get(keyword, most))}


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
        except ValidationError as error:
            wrong = wrong_fields(error)
            raise ConfigError(f"{name}: model {key!r}: {wrong}") from error
        except TypeError as error:  # not a table, or one that names itself
            raise ConfigError(f"{name}: model {key!r} is not a table of a model's fields") from error


def _from_folder(source: str, folder: Path) -> str:
    """Return a source with a relative path made absolute. `package:` and `s3://` are no paths."""
    return source if _SCHEME.match(source) else str(folder.resolve() / Path(source).expanduser())


def _refuse_clashes(models: Catalogue) -> None:
    owners = {name: name for name in models}
    for model in models.values():
        for alias in model.aliases:
            if (owner := owners.setdefault(alias, model.name)) != model.name:
                raise ConfigError(f"the alias {alias!r} of model {model.name!r} is a name of model {owner!r} already")


def _places(
    root: Mapping[str, Any], schema: Mapping[str, Any], value: Any, pointer: str
) -> Iterator[tuple[str, Mapping[str, Any], Any]]:
    """Yield the pointer, the schema and the value of every part of a value, whole before parts."""
    yield pointer, schema, value
    if "$ref" in schema:
        yield from _places(root, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], value, pointer)
        return
    for union in ("anyOf", "oneOf", "allOf"):
        for part in schema.get(union, ()):
            yield from _places(root, part, value, pointer)
    for name, part, inner in _inside(schema, value):
        yield from _places(root, part, inner, f"{pointer}/{name}")


def _inside(schema: Mapping[str, Any], value: Any) -> Iterator[tuple[str | int, Mapping[str, Any], Any]]:
    """Yield (name, schema, value) of an object's known properties or a list's items."""
    if isinstance(value, dict):
        yield from ((key, part, value[key]) for key, part in schema.get("properties", {}).items() if key in value)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        yield from ((index, schema["items"], item) for index, item in enumerate(value))
