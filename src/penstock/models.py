"""Models: the records of a catalogue, the entries that the API serves, and the marked parts of their schemas.

A model names its runner (computes the outputs) and its IO processor (prepares input and writes results). Workers read
the records. The API reads only the `CatalogueEntry` that a worker exports for each, because making an entry means
importing the processor.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Protocol, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from penstock.views import View

_NAME = r"^[a-z0-9][a-z0-9._-]{0,63}$"
Name = Annotated[str, StringConstraints(pattern=_NAME)]
#: Another name of a model, such as `organisation/Name` on the hub.
Alias = Annotated[
    str, StringConstraints(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,63}/)?[A-Za-z0-9][A-Za-z0-9._-]{0,95}$")
]
#: Characters of a model's name or alias in a request, at most.
MAX_NAME_CHARS = 161


#: Name of the runner and of the processor of functions.
FUNCTION = "function"
_HUB = "hf://"
_UNIONS = ("anyOf", "oneOf", "allOf")
#: Keyword of a stored schema with the views of the answer.
_VIEWS = "x-views"

#: An `https` address without a password and without a query, which could contain a signature.
PublicAddress = Annotated[str, StringConstraints(pattern=r"^https://[^\s/@?#]+(/[^\s?#]*)?$", max_length=2048)]

#: 64 lower-case hexadecimal digits.
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

#: A field of a processor's request that refers to media: `media://<upload>`, `s3://bucket/key` or `https://...`. By its
#: format the API and the workers find the references in a request without knowing the processor.
MediaReference = Annotated[
    str,
    StringConstraints(min_length=1, max_length=2048),
    Field(
        json_schema_extra={"format": "media"},
        description="media://<upload>, s3://bucket/key (allowed buckets), https://... (allowed hosts) or data:...",
    ),
]

#: The format of a string that is a media reference.
_MEDIA = "media"

#: Marks a list in a processor's request as the job's items: `Annotated[list[str], Field(min_length=1), ITEMS]`, or an
#: integer as the number of items to make. The API's schema limits both to the model's `max_items`.
ITEMS = Field(json_schema_extra={"x-items": True})

#: Marks a number of steps in the same way: the API's schema limits it to the model's `max_steps`.
STEPS = Field(json_schema_extra={"x-steps": True})


#: Key of `json_schema_extra` that marks a request, or a field of one, as raw tensors or embeddings. Only tenants with
#: `raw_tensors` may send them.
TENSORS = "x-tensors"

#: Marks a media reference in a processor's request, with the name of a field at the top level: if a request has this
#: field, the worker fetches large TIFF files only as far as the processor asks for (`Media.fill`).
BY_RANGE = "x-by-range"

#: Marks a media reference as `BY_RANGE` does, for a processor whose jobs several workers share (`PartProcessor`): large
#: TIFF files may be partial in every request, because it may be others who read them.
SHARED = "x-shared"

#: Marks a part of a request whose media may be missing, if the request has the field that the mark names: the processor
#: gets the error of a file that cannot be had when it asks for its path.
MAY_LACK = "x-may-lack"

#: Marks a STAC item in a processor's request, as a media reference or as the document itself: the processor may have
#: the worker fetch the item's assets (`Media.fetch`).
LINKS = "x-links"


class Record(BaseModel):
    """A frozen value read from outside; unknown keys are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Limits(Record):
    """The limits of a model's input. None = no limit.

    The API checks `max_bytes` and `max_items` before it accepts a job. The processor checks the others once the media
    are fetched.
    """

    #: Bytes of one medium.
    max_bytes: int | None = Field(default=None, gt=0)
    #: Pixels of one image or scene.
    max_pixels: int | None = Field(default=None, gt=0)
    #: Tiles of one scene.
    max_tiles: int | None = Field(default=None, gt=0)
    #: Seconds of one recording or video. None = four hours.
    max_seconds: float | None = Field(default=None, gt=0)
    #: Items of one job: its media, or its texts.
    max_items: int | None = Field(default=None, gt=0)
    #: Tokens of one text.
    max_tokens: int | None = Field(default=None, gt=0)
    #: Steps of a generation.
    max_steps: int | None = Field(default=None, gt=0)


def on_hub(source: str) -> tuple[str, str]:
    """Return the repository of a source on the hub, and the path of its file inside; empty for the whole repository."""
    *repository, file = (*source.removeprefix(_HUB).split("/", 2), "", "")[:3]
    return "/".join(filter(None, repository)), file


def is_name(text: str) -> bool:
    """Return True for a text that may be a model's name."""
    return re.fullmatch(_NAME, text) is not None


class Step(Record):
    """A post-processor of a model."""

    #: Entry point of the post-processor.
    use: Name
    #: Options, which the post-processor validates.
    options: Mapping[str, Any] = Field(default_factory=dict)


class Model(Record):
    """A model's record in the catalogue."""

    #: Name of the model: the name of its table, `[models.NAME]`.
    name: Name
    #: Title in a few words.
    title: str
    #: Description: the model's purpose, and the uses that it is not fit for.
    description: str = ""
    #: Other names that requests may use. The job always shows `name`.
    aliases: tuple[Alias, ...] = ()
    #: Function that serves the model, instead of a runner and a processor: `FILE.py:NAME` beside this file, or a kind
    #: that ships with the service, such as `token-classification`.
    function: str | None = Field(default=None, pattern=r"^([a-z0-9][a-z0-9-]*|.+\.py:[A-Za-z_]\w*)$")
    #: Runner that computes the outputs: `transformers`, `torch`, `onnx`, `rapidocr`, `lightgbm`, `openai-server`.
    runner: Name
    #: Entry point of the IO processor, which turns input into prompts and outputs into a result.
    processor: Name
    #: Post-processors that change the outputs, in order, before the processor reads them.
    post_processors: tuple[Step, ...] = ()
    #: A file or directory, `package:<module>/<path>` inside an installed package, `s3://bucket/prefix`, or
    #: `hf://organisation/name` at the `revision` of the Hugging Face hub, or one file of it:
    #: `hf://organisation/name/folder/file`; for `openai-server` the server's address.
    source: str
    #: Revision of the model: a name of your choice, or the hub's commit. Results record it.
    revision: str
    #: `https` address at which the weights are published, for the model's STAC item. Not needed for `hf://` sources.
    weights_url: PublicAddress | None = None
    #: SHA-256 of the weights, if the source is one file; checked before the file is loaded.
    sha256: Sha256 | None = None
    #: SHA-256 of files in a source directory, by their paths inside; checked before they are loaded.
    files: Mapping[str, Sha256] = Field(default_factory=dict)
    #: Device: `auto`, `cpu`, `cuda`, or one of several: `cuda:1`.
    device: str = "auto"
    #: True: the passes of the model, one of pictures for instance, run in a process of their own, not in the worker's.
    own_process: bool = False
    #: Environment that computes the model where the worker's own lacks its library: a folder with `bin/python`, or an
    #: interpreter. The model then runs in a process of its own.
    environment: str | None = None
    #: Packages of such an environment, as `pip` takes them (`terratorch==1.2.13`), which the worker locks and builds
    #: unless its own has them all. Not read where `environment` names one that is ready.
    dependencies: tuple[str, ...] = ()
    #: Number type of the computation; `bfloat16` by autocast.
    dtype: Literal["float32", "bfloat16"] = "float32"
    #: Queue of the model's jobs; workers serve the queues named in their settings. Models may share a queue.
    queue: Name = "default"
    #: Prompts of one shape in one forward pass, at most.
    max_batch: int = Field(default=1, gt=0)
    #: Sum of the prompts' costs in one forward pass, at most (see `Prompt.cost`). None = only `max_batch` limits it.
    max_batch_cost: int | None = Field(default=None, gt=0)
    #: Has no effect any more, in records of 0.1.0: `penstock models tune` measures batches.
    measure_batch: bool = False
    #: Warm-up: a worker runs the processor's dummy request through the model before it claims jobs.
    warm_up: bool = True
    #: Limits of the model's input.
    limits: Limits = Limits()
    #: Result cache: a job equal to an earlier job of its tenant gets that job's result without computing.
    cache: bool = False
    #: Seconds that the processor may take between two prompts, or between an output and the next artifact.
    io_timeout_s: float = Field(default=600, gt=0)
    #: Seconds that an attempt may run, unless the request sets its own limit.
    execution_timeout_s: int = Field(default=3600, gt=0)
    #: Seconds that a job may wait, unless the request sets its own limit.
    queue_ttl_s: int = Field(default=86_400, gt=0)
    #: Attempts of a job in all, when attempts fail with retryable errors.
    max_attempts: int = Field(default=5, gt=0)
    #: Licence of the model, shown with it.
    licence: str = ""
    #: Citation, shown with the model.
    citation: str = ""
    #: Links to more information, shown with the model.
    links: tuple[str, ...] = ()
    #: Options for the processor and the runner; each validates its own table.
    options: Mapping[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _of_function(cls, data: Any) -> Any:
        """Fill in the runner and the processor of a function's record; the function has a title of its own."""
        if not isinstance(data, dict) or data.get("function") is None:
            return data
        # A function of a scene's tiles has a raster processor.
        return {"title": "", "processor": FUNCTION, **data, "runner": FUNCTION}

    @property
    def is_unbuilt(self) -> bool:
        """True if the model needs an environment of which it is not known that it is built."""
        return bool(self.dependencies) and self.environment is None

    @property
    def published_at(self) -> str | None:
        """Public address of the weights: `weights_url`, or the hub's page of the revision; None if unknown."""
        if self.weights_url is not None or not self.source.startswith(_HUB):
            return self.weights_url
        repository, file = on_hub(self.source)
        kind = (
            f"blob/{quote(self.revision, safe='')}/{quote(file)}" if file else f"tree/{quote(self.revision, safe='')}"
        )
        return f"https://huggingface.co/{repository}/{kind}"


class Output(Record):
    """An output that a model can make."""

    name: str
    media_type: str
    description: str
    default: bool = True


class CatalogueEntry(Record):
    """A model as the API serves it: sufficient to validate a request without importing the processor."""

    name: Name
    title: str
    description: str = ""
    #: Other names that requests may use: those of the record, and those that `penstock models promote` gave it.
    aliases: tuple[str, ...] = ()
    revision: str
    queue: Name
    #: Entry point of the IO processor. It determines which other interfaces can use the model.
    processor: str = ""
    #: JSON Schema (2020-12) of the job's `input`; media references have the format `media`.
    input_schema: Mapping[str, Any]
    outputs: tuple[Output, ...]
    #: The forms in which people read the JSON of an answer.
    views: tuple[View, ...] = ()
    limits: Limits = Limits()
    execution_timeout_s: int
    queue_ttl_s: int
    max_attempts: int
    licence: str = ""
    citation: str = ""
    links: tuple[str, ...] = ()
    #: Reason why the model cannot be used: its processor or weights failed the check. None if it can.
    problem: str | None = None
    #: True when a worker has warmed the model up. Jobs are accepted before that, and wait.
    ready: bool = True
    #: Reason why jobs of the model are accepted although no worker has warmed it up.
    note: str | None = None

    def to_stored(self) -> dict[str, Any]:
        """Return the entry as it is stored, without its note: its views lie in the schema.

        Release 0.1.0 refuses fields that it does not know, and passes over keywords of a schema.
        """
        found = self.model_dump(mode="json", exclude={"note", "views"})
        views = [{"form": view.form, "at": view.at, "each": view.each} for view in self.views]
        return {**found, "input_schema": {**found["input_schema"], _VIEWS: views}} if views else found

    @classmethod
    def of_stored(cls, document: Mapping[str, Any]) -> CatalogueEntry:
        """Return a stored entry, also of a newer release; raise `ValidationError`."""
        schema = dict(document.get("input_schema") or {})
        views = schema.pop(_VIEWS, ())
        return cls.model_validate({**document, "input_schema": schema, "views": views}, extra="ignore")


class Named(Protocol):
    """A model's record or catalogue entry."""

    @property
    def name(self) -> str:
        """The model's name."""
        ...

    @property
    def aliases(self) -> tuple[str, ...]:
        """The model's other names."""
        ...

    @property
    def revision(self) -> str:
        """The model's revision."""
        ...


NamedT = TypeVar("NamedT", bound=Named)


def find(catalogue: Mapping[str, NamedT], name: str) -> NamedT | None:
    """Return the model of this name or alias; None if there is none. A name takes precedence over an alias.

    `NAME@REVISION` is the model of the name if that is its revision. A name has one revision at most.
    """
    if name in catalogue:
        return catalogue[name]
    called = next((catalogue[key] for key in sorted(catalogue) if name in catalogue[key].aliases), None)
    base, at, revision = name.rpartition("@")
    if called is not None or not at or "@" in base:
        return called
    model = find(catalogue, base)
    return model if model is not None and model.revision == revision else None


def no_model(names: Iterable[str], catalogue: Mapping[str, NamedT]) -> str:
    """Return the sentence for unknown models: their names, the nearest known one, and all known ones."""
    unknown = list(names)
    known = [*catalogue, *(alias for model in catalogue.values() for alias in model.aliases)]
    near = [found for name in unknown for found in get_close_matches(name, known, n=1)]
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"there is no model {', '.join(map(repr, unknown))}{hint}; known models: {known_names(catalogue)}"


def known_names(catalogue: Mapping[str, NamedT]) -> str:
    """Return the models' names, with aliases in brackets: `csmask (clouds), stories`."""
    aliases = {name: f" ({', '.join(model.aliases)})" if model.aliases else "" for name, model in catalogue.items()}
    return ", ".join(f"{name}{aliases[name]}" for name in sorted(catalogue)) or "none"


def media_by_range(schema: Mapping[str, Any], value: Mapping[str, Any]) -> frozenset[str]:
    """Return the media of a request that need not be whole: their mark `BY_RANGE` names a field that the request has.

    Such a field limits the part of the media that the processor reads.
    """
    found = _places(schema, value) if _mentions(schema, BY_RANGE) else ()
    return frozenset(
        text for _, part, text in found if isinstance(text, str) and value.get(part.get(BY_RANGE, "")) is not None
    )


def media_to_share(schema: Mapping[str, Any], value: Mapping[str, Any]) -> frozenset[str]:
    """Return the media of a request that need not be whole where other workers compute it: those with `SHARED`.

    Files on the web are none of them: their servers may be slow to answer many requests.
    """
    if not _mentions(schema, SHARED):
        return frozenset()
    found = (text for _, part, text in _places(schema, value) if part.get(SHARED) is True)
    return frozenset(text for text in found if isinstance(text, str) and not text.startswith(("http://", "https://")))


def places_that_may_lack(schema: Mapping[str, Any], value: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the beginnings of the JSON pointers of media that may be missing: the parts with the mark `MAY_LACK`."""
    found = _places(schema, value) if _mentions(schema, MAY_LACK) else ()
    return tuple(f"{place}/" for place, part, _ in found if value.get(part.get(MAY_LACK, "")) is not None)


def linked_documents(schema: Mapping[str, Any], value: Any) -> Iterator[str | Mapping[str, Any]]:
    """Yield the documents of a request whose links may be fetched: references, or documents themselves."""
    for _, part, found in _places(schema, value) if _mentions(schema, LINKS) else ():
        if part.get(LINKS) is True and isinstance(found, str | Mapping):
            yield found


def media_references(schema: Mapping[str, Any], value: Any) -> Iterator[tuple[str, str]]:
    """Yield (JSON pointer, reference) for every string in `value` that the schema marks as media.

    Follows `properties`, `items`, `anyOf`/`oneOf`/`allOf` and local `$ref`s, as pydantic writes them.
    """
    for place, part, found in _places(schema, value) if _mentions(schema, _MEDIA) else ():
        if isinstance(found, str) and part.get("format") == _MEDIA:
            yield place, found


def tensor_places(schema: Mapping[str, Any], value: Any) -> Iterator[str]:
    """Yield the JSON pointer of every part of `value` that the schema marks as raw tensors."""
    for place, part, found in _places(schema, value) if _mentions(schema, TENSORS) else ():
        if found is not None and part.get(TENSORS) is True:
            yield place


def limited(schema: Any, limits: Limits) -> Any:
    """Return the schema with the model's `max_items` and `max_steps` applied to parts marked `ITEMS` or `STEPS`."""
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


#: Marks of the schemas that were looked at lately, with the schema, by its identity.
_MARKED: dict[int, tuple[Mapping[str, Any], frozenset[str]]] = {}
_MAX_MARKED = 1000


def _mentions(schema: Mapping[str, Any], mark: str) -> bool:
    """Return False if a mark stands nowhere in a schema: then no request has a part with it."""
    known = _MARKED.get(id(schema))
    if known is None or known[0] is not schema:
        if len(_MARKED) >= _MAX_MARKED:
            _MARKED.clear()
        text = json.dumps(schema, default=dict)
        marks = (each for each in (_MEDIA, TENSORS, BY_RANGE, SHARED, LINKS, MAY_LACK) if f'"{each}"' in text)
        known = _MARKED[id(schema)] = schema, frozenset(marks)
    return mark in known[1]


def _places(root: Mapping[str, Any], value: Any) -> Iterator[tuple[str, Mapping[str, Any], Any]]:
    """Yield the pointer, schema and value of every part of a value, a whole before its parts."""
    waiting = [("", root, value)]
    while waiting:
        pointer, schema, found = waiting.pop()
        yield pointer, schema, found
        if "$ref" in schema:
            waiting.append((pointer, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], found))
            continue
        parts = [(pointer, part, found) for union in _UNIONS if union in schema for part in schema[union]]
        if isinstance(found, dict):
            properties = schema.get("properties", {})
            parts += [(f"{pointer}/{name}", part, found[name]) for name, part in properties.items() if name in found]
        elif isinstance(found, list) and isinstance(schema.get("items"), dict):
            parts += [(f"{pointer}/{index}", schema["items"], item) for index, item in enumerate(found)]
        waiting += reversed(parts)
