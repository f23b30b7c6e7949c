"""The catalogue: `models.toml` read into `Model` records, and what the API knows of each model.

A model names its runner (how to compute) and its IO processor (how data goes in and comes out). Workers read the
records; the API reads only the `CatalogueEntry` that a worker exported from them, because
making one means importing the processor.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
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

#: Of a record that does not say it, or says it wrongly.
_MADE_UP = {"runner": "none", "processor": "none", "source": "", "revision": ""}

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


@dataclass(frozen=True, slots=True)
class WrongRecord:
    """A record of a catalogue that makes no model."""

    #: What of it is right; what is not, or not there, is made up. It is told of and never run.
    rest: Model
    #: The file, the model, the field and the reason.
    problem: str

    @property
    def name(self) -> str:
        """The model's name."""
        return self.rest.name

    @property
    def aliases(self) -> tuple[str, ...]:
        """Other names of it."""
        return self.rest.aliases


@dataclass(frozen=True, slots=True, eq=False)
class Catalogue(Mapping[str, Model]):
    """Models by name, and the records that make none: a wrong one is the trouble of its own model."""

    models: Mapping[str, Model]
    wrong: Mapping[str, WrongRecord] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Model:
        """Return a model by its name."""
        return self.models[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the models' names."""
        return iter(self.models)

    def __len__(self) -> int:
        """Return how many models there are."""
        return len(self.models)


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

    A `source` that is a relative path starts at the folder of its catalogue. A record that does not fit, or claims an
    alias that is another model's already, is one of the `wrong`. Raises `ConfigError` for a file that cannot be read,
    is not TOML, or has a record whose name can be no model's.
    """
    records: dict[str, _Read] = {}
    shipped = files("penstock") / "catalogue" / "models.toml"
    for read in _parse("the shipped catalogue", shipped.read_text()):
        records[read.name] = read
    for path in paths:
        for read in _parse(str(path), _text(path)):
            records.pop(read.name, None)  # the names of what is read later come after those of what was read before
            records[read.name] = read.in_folder(path.parent)
    found = _without_clashes(records.values())
    return Catalogue(
        MappingProxyType({read.name: read.model for read in found if read.wrong is None}),
        MappingProxyType({read.name: WrongRecord(read.model, read.wrong) for read in found if read.wrong is not None}),
    )


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


@dataclass(frozen=True, slots=True)
class _Read:
    """A record as it was read."""

    #: Its file and its name, for sentences.
    where: str
    #: Of a wrong record what is right of it.
    model: Model
    #: What is wrong with it, if anything is.
    wrong: str | None = None

    @property
    def name(self) -> str:
        return self.model.name

    def in_folder(self, folder: Path) -> _Read:
        """Return a record whose source is no path relative to a folder any more."""
        if self.wrong is not None:
            return self
        return replace(self, model=self.model.model_copy(update={"source": _from_folder(self.model.source, folder)}))

    def without_aliases(self, why: str) -> _Read:
        """Return a record that is wrong by its aliases."""
        said = f"{self.where}: aliases: {why}" if self.wrong is None else self.wrong
        return replace(self, model=self.model.model_copy(update={"aliases": ()}), wrong=said)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the catalogue {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the catalogue {path} is not UTF-8") from error


def _parse(file: str, text: str) -> Iterator[_Read]:
    try:
        tables = tomllib.loads(text).get("models", {})
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not TOML: {error}") from error
    if not isinstance(tables, dict):
        raise ConfigError(f"{file}: models is not a table of records: [models.NAME]")
    for name, table in tables.items():
        yield _record(f"{file}: model {name!r}", name, table)


def _record(where: str, name: str, table: Any) -> _Read:
    """Return a record as a model, or as what of it is right; raise `ConfigError` if its name can be no model's."""
    if not isinstance(table, dict):
        return _Read(where, _model_of(where, name, {}), f"{where} is not a table of a model's fields")
    if "name" in table:
        rest = {key: value for key, value in table.items() if key != "name"}
        return replace(
            _record(where, name, rest), wrong=f"{where}: name: is not known: its table's name is the model's"
        )
    try:
        return _Read(where, Model.model_validate({**table, "name": name}))
    except ValidationError as error:
        wrong_ones = {place["loc"][0] for place in error.errors()}
        rest = {key: value for key, value in table.items() if key not in wrong_ones}
        return _Read(where, _model_of(where, name, rest), f"{where}: {wrong_fields(error)}")


def _model_of(where: str, name: str, right: Mapping[str, Any]) -> Model:
    """Return what is right of a wrong record as a model that is never run."""
    try:
        return Model.model_validate({**_MADE_UP, "title": name, **right, "name": name})
    except ValidationError as error:
        raise ConfigError(f"{where}: {wrong_fields(error)}") from error


def _from_folder(source: str, folder: Path) -> str:
    """Return a source with a relative path made absolute. `package:` and `s3://` are no paths."""
    return source if _SCHEME.match(source) else str(folder.resolve() / Path(source).expanduser())


def _without_clashes(records: Iterable[_Read]) -> list[_Read]:
    """Return the records with those wrong that claim a name of another model: of two aliases the later one does."""
    records = list(records)
    owners = {read.name: read.name for read in records}
    found = []
    for read in records:
        taken = [alias for alias in read.model.aliases if owners.setdefault(alias, read.name) != read.name]
        said = "; ".join(f"{alias!r} is a name of model {owners[alias]!r} already" for alias in taken)
        found.append(read.without_aliases(said) if taken else read)
    return found


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
