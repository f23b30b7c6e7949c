"""Signatures of functions: from annotations to JSON Schema, and to the codec of each parameter and answer."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import sys
import types
import typing
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union

from penstock.functions import checks, scenes
from penstock.functions import declaration as d
from penstock.functions.kinds import Kind, codec_of, members, split

#: Schema of a reference to a file of a job.
_MEDIA = {"type": "string", "minLength": 1, "maxLength": 2048, "format": "media"}
#: Codecs of answers: no parameter has them.
_ANSWERS = ("labels", "boxes", "vector", "classes", "quantities")
_PLAIN: Mapping[Any, Mapping[str, Any]] = {
    str: {"type": "string"}, int: {"type": "integer"}, float: {"type": "number"}, bool: {"type": "boolean"},
    type(None): {"type": "null"}, Any: {}, list: {"type": "array"}, dict: {"type": "object"},
}  # fmt: skip
_BOUNDS = {
    "ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum", "pattern": "pattern",
}  # fmt: skip
_STREAMS = (Iterator, Iterable, Generator, AsyncIterator)


class Unservable(Exception):
    """A function that cannot be a model, with file, line and what to write instead."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A function as a model."""

    attribute: str
    options: d.Options
    target: Any
    function: Callable[..., Any]
    parameters: Mapping[str, Kind]
    #: Kinds of the answers by name; one without a name for a single answer.
    answers: Mapping[str, Kind]
    #: It yields.
    streams: bool
    schema: Mapping[str, Any]
    #: The processor of its scenes and the options of its record, if it takes tiles.
    raster: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        """The model's name."""
        return self.options.name or self.attribute.strip("_").lower()

    @property
    def place(self) -> str:
        """File and line of the function."""
        return _place(self.function)

    @property
    def batched(self) -> str | None:
        """The parameter whose items are those of several jobs; None where each job has a call of its own."""
        return next(iter(self.parameters), "") if self.options.max_batch > 1 else None

    def to_json(self) -> dict[str, Any]:
        """Return the signature as the service reads it."""
        title, text = _help(self.target)
        words = self.attribute.strip("_").replace("_", " ")
        return {
            "attribute": self.attribute,
            "name": self.name,
            "title": self.options.title or title or words[:1].upper() + words[1:],
            "description": text,
            "parameters": {name: kind.to_json() for name, kind in self.parameters.items()},
            "answers": {name: kind.to_json() for name, kind in self.answers.items()},
            "batched": self.batched,
            "streams": self.streams,
            "options": _options(self.target),
            "schema": dict(self.schema),
            "raster": self.raster,
            "place": self.place,
            **{name: getattr(self.options, name) for name in (
                "gpu", "max_batch", "concurrency", "network", "secrets", "timeout_s", "memory_bytes", "queue", "cache",
            )},
        }  # fmt: skip


def _options(target: Any) -> list[str]:
    """Return the names of the arguments with which a class is made: a record's `options`."""
    return list(inspect.signature(target).parameters) if inspect.isclass(target) else []


def signatures(module: Any) -> list[Signature]:
    """Return the models of an imported file, in its order; raise `Unservable`."""
    marked = [
        (name, value) for name, value in vars(module).items()
        if d.MARK in getattr(value, "__dict__", {}) and getattr(value, "__module__", None) == module.__name__
    ]  # fmt: skip
    found = [read_signature(name, value) for name, value in marked]
    places = dict[str, str]()
    for one in found:
        name, place = one.name, _place(one.target)
        if name in places:
            raise Unservable(f"{place}: {one.attribute}: {places[name]} already is a model {name!r}: give it a `name`")
        places[name] = place
    return found


def read_signature(attribute: str, target: Any) -> Signature:
    """Read a decorated function or class; raise `Unservable`."""
    options: d.Options = getattr(target, d.MARK)
    function = getattr(target, "predict", None) if inspect.isclass(target) else target
    if function is None:
        raise Unservable(f"{_place(target)}: the class {attribute} has no method `predict`")
    fail = _Fail(_place(function), attribute)
    hints = _hints(function, fail)
    if wrong := checks.wrong_name(options.name or attribute.strip("_").lower()):
        raise fail(wrong)
    parameters, required, properties, definitions = {}, [], {}, dict[str, Any]()
    for name, parameter in inspect.signature(function).parameters.items():
        if inspect.isclass(target) and name == "self":
            continue
        if wrong := checks.wrong_parameter(parameter):
            raise fail(wrong)
        if name not in hints:
            raise fail(f"the parameter `{name}` has no annotation: write `{name}: str`, for instance")
        reader = _Reader(name, fail, definitions)
        parameters[name], properties[name] = _parameter(reader, hints[name], parameter.default)
        if parameter.default is parameter.empty:
            required.append(name)
    if "return" not in hints:
        raise fail("the answer has no annotation: write `-> str`, for instance")
    streams, answer = _streamed(hints["return"], fail)
    if not streams and checks.yields(function):
        raise fail("it yields: write `-> Iterator[str]` or `-> Iterator[Progress | Image]`, for instance")
    schema = {
        "type": "object", "properties": properties, "required": required, "additionalProperties": False,
        **({"$defs": definitions} if definitions else {}),
    }  # fmt: skip
    found = Signature(attribute, options, target, function, parameters, _answers(answer, fail), streams, schema)
    _check_batch(found, fail)
    return _with_raster(found, fail)


def _parameter(reader: _Reader, hint: Any, default: Any) -> tuple[Kind, dict[str, Any]]:
    """Return the kind and the schema of a parameter; raise `Unservable`."""
    name, fail, kind = reader.name, reader.fail, reader.kind(hint)
    if default is None and kind.codec == "json" and type(None) not in members(split(hint)[0]):
        hint = Union[hint, None]  # noqa: UP007  (`a: str = None`, as people write it)
        kind = reader.kind(hint)
    if kind.codec in _ANSWERS:
        raise fail(f"`{name}`: {said(hint)} is a type of answers: write `dict` or `list`")
    schema = reader.schema(hint)
    if kind.codec == "json" and (wrong := checks.nested_file(name, said(hint), schema)):
        raise fail(wrong)
    if default is not inspect.Parameter.empty:
        schema["default"] = _plain_default(default, name, fail)
        if default is not None and not checks.fits(schema["default"], schema, reader.definitions):
            raise fail(f"the default of `{name}`, {default!r}, does not fit {said(hint)}")
    return kind, schema


@dataclass(frozen=True, slots=True)
class _Fail:
    """Makes the error of a function, with its place."""

    place: str
    attribute: str

    def __call__(self, reason: str) -> Unservable:
        return Unservable(f"{self.place}: {self.attribute}: {reason}")


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the annotation of one parameter or answer."""

    name: str
    fail: _Fail
    definitions: dict[str, Any]
    #: The dataclasses whose fields are read.
    inside: tuple[type, ...] = ()

    def kind(self, annotation: Any) -> Kind:
        """Return the kind of an annotation."""
        base, extra = split(annotation)
        try:
            return self._kind(annotation, base, extra)
        except ValueError as error:  # words on scenes at another type
            raise self.fail(f"`{self.name}`: {error}") from error

    def _kind(self, annotation: Any, base: Any, extra: Sequence[Any]) -> Kind:
        if found := codec_of(base, extra):
            return found
        if typing.get_origin(base) in (list, Sequence, tuple) and (inner := typing.get_args(base)):
            item = codec_of(*split(inner[0]))
            if item is not None and (len(inner) == 1 or inner[1:] == (...,)):
                return dataclasses.replace(item, is_list=True)
        others = [one for one in members(base) if one is not type(None)]
        if len(others) == 1 and codec_of(*split(others[0])) is not None:
            return self.kind(others[0])
        return Kind(annotation=annotation)

    def schema(self, annotation: Any) -> dict[str, Any]:
        """Return the JSON Schema of an annotation."""
        base, extra = split(annotation)
        found = self._of(base, extra)
        for bound in extra:
            found |= _bounds(bound, found)
        return found

    def _of(self, base: Any, extra: Sequence[Any]) -> dict[str, Any]:
        if (known := codec_of(base, extra)) and known.codec not in _ANSWERS:
            return {**_MEDIA, "x-codec": known.codec}
        if base in _PLAIN:
            return dict(_PLAIN[base])
        origin, inner = typing.get_origin(base), typing.get_args(base)
        if origin is Literal:
            return {"enum": list(inner)}
        if found := members(base):
            return {"anyOf": [self.schema(one) for one in found]}
        if origin in (list, Sequence) or (origin is tuple and inner[1:] == (...,)):
            return {"type": "array", "items": self.schema(inner[0])}
        if origin is tuple:
            parts = [self.schema(one) for one in inner]
            return {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}
        if origin in (dict, Mapping) and inner[0] is str:
            return {"type": "object", "additionalProperties": self.schema(inner[1])}
        if inspect.isclass(base):
            return self._of_class(base)
        raise self._refused(base)

    def _of_class(self, base: type) -> dict[str, Any]:
        if issubclass(base, enum.Enum):
            return {"enum": [one.value for one in base]}
        if hasattr(base, "model_json_schema"):  # pydantic
            written = base.model_json_schema(ref_template="#/$defs/{model}")
            self.definitions.update(written.pop("$defs", {}))
            return dict(written)
        if dataclasses.is_dataclass(base):
            if base in self.inside:
                raise self.fail(f"`{self.name}`: {said(base)} contains itself: write a pydantic model")
            inner = dataclasses.replace(self, inside=(*self.inside, base))
            hints = typing.get_type_hints(base, include_extras=True)
            needed = [one.name for one in dataclasses.fields(base) if _is_needed(one)]
            rows = {one.name: inner.schema(hints[one.name]) | _default_of(one) for one in dataclasses.fields(base)}
            return {"type": "object", "properties": rows, "required": needed, "additionalProperties": False}
        raise self._refused(base)

    def _refused(self, base: Any) -> Unservable:
        instead = (
            "a list"
            if typing.get_origin(base) in (set, frozenset) or base in (set, frozenset)
            else ("str, int, float, bool, list, dict, a dataclass, or a type of penstock such as Image or File")
        )
        return self.fail(f"`{self.name}: {said(base)}` cannot be served: write {instead}")


def _streamed(annotation: Any, fail: _Fail) -> tuple[bool, Any]:
    """Return True and what a generator yields, or False and the answer."""
    origin = typing.get_origin(annotation)
    if origin not in _STREAMS:
        return False, annotation
    inner = typing.get_args(annotation)
    if not inner:
        raise fail("say what it yields: write `-> Iterator[Progress | Text]`, for instance")
    kept = [one for one in members(inner[0]) or (inner[0],) if one not in (d.Progress, d.Text, str)]
    answer = inner[2] if origin is Generator and len(inner) == 3 and inner[2] is not type(None) else None
    if answer is not None:
        return True, answer
    return True, list[Union[tuple(kept)]] if kept else type(None)  # type: ignore[misc]  # noqa: UP007


def _answers(annotation: Any, fail: _Fail) -> dict[str, Kind]:
    """Return the kinds of an answer: one, or those of a dataclass or tuple that holds files."""
    base, _ = split(annotation)
    if dataclasses.is_dataclass(base) and inspect.isclass(base) and codec_of(base, ()) is None:
        hints = typing.get_type_hints(base, include_extras=True)
        rows = {one.name: _Reader(one.name, fail, {}).kind(hints[one.name]) for one in dataclasses.fields(base)}
        if any(kind.codec != "json" for kind in rows.values()):
            return rows
    inner = typing.get_args(base)
    if typing.get_origin(base) is tuple and inner[1:] != (...,):
        kinds = [_Reader(f"answer {at}", fail, {}).kind(one) for at, one in enumerate(inner, 1)]
        if any(kind.codec != "json" for kind in kinds):
            return {str(at): kind for at, kind in enumerate(kinds, 1)}
    reader = _Reader("->", fail, {})
    kind = reader.kind(annotation)
    if kind.codec == "json":
        reader.schema(annotation)  # refuses what is no JSON
    return {"": kind}


def _with_raster(found: Signature, fail: _Fail) -> Signature:
    """Return a function of a scene's tiles with its processor, options and schema; any other as it is."""
    batched = found.batched is not None
    try:
        raster = scenes.raster_of(found.parameters, found.answers, streams=found.streams, batched=batched)
    except ValueError as error:
        raise fail(str(error)) from error
    if raster is None:
        return found
    return dataclasses.replace(found, raster=raster, schema=scenes.schema_of(raster["options"]))


def _check_batch(found: Signature, fail: _Fail) -> None:
    asynchronous = inspect.iscoroutinefunction(found.function) or inspect.isasyncgenfunction(found.function)
    if found.options.concurrency > 1 and not asynchronous:
        raise fail("`concurrency` is for `async def`; for several items in a call write `max_batch`")
    if found.batched is None:
        return
    if found.streams:
        raise fail("a generator has no batches: remove `max_batch`")
    if asynchronous:
        raise fail("an async function has no batches: write `concurrency` instead of `max_batch`")
    hints = _hints(found.function, fail)
    if not found.parameters:
        raise fail("with `max_batch` the first parameter is a list, and there is no parameter")
    for name, kind in ((found.batched, hints[found.batched]), ("->", hints["return"])):
        if typing.get_origin(split(kind)[0]) not in (list, Sequence):
            raise fail(f"with `max_batch` the first parameter and the answer are lists, and `{name}` is none")


def _hints(function: Any, fail: _Fail) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, ValueError) as error:
        raw = getattr(function, "__annotations__", {})
        if not any(isinstance(one, d.Audio | d.Video | d.Document | types.ModuleType) for one in raw.values()):
            raise fail(f"an annotation cannot be read: {error}") from error
        hints = dict(raw)
    return hints


def _bounds(bound: Any, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of a `Field` of ours, of pydantic's, or of annotated-types."""
    if isinstance(bound, str):
        return {"description": bound}
    found = dict[str, Any]()
    for inner in (*getattr(bound, "metadata", ()), bound):
        found |= {word: value for name, word in _BOUNDS.items() if (value := getattr(inner, name, None)) is not None}
        for name, word in (("min_length", "min"), ("max_length", "max")):
            if (value := getattr(inner, name, None)) is not None:
                found[word + ("Items" if schema.get("type") == "array" else "Length")] = value
    if text := getattr(bound, "description", None):
        found["description"] = text
    return found


def _default_of(one: Any) -> dict[str, Any]:
    plain = isinstance(one.default, str | int | float | bool)
    return {"default": one.default} if plain and not isinstance(one.default, enum.Enum) else {}


def _is_needed(one: Any) -> bool:
    return one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING


def _plain_default(value: Any, name: str, fail: _Fail) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if value is None or isinstance(value, str | int | float | bool | list | dict):
        return value
    raise fail(f"the default of `{name}` is no JSON: write `{name}: ... | None = None`")


def _help(target: Any) -> tuple[str, str]:
    """Return the first line and the rest of a docstring."""
    text = inspect.getdoc(target) if target.__doc__ else ""
    first, _, rest = (text or "").partition("\n")
    return first.strip().rstrip("."), rest.strip()


def _place(target: Any) -> str:
    try:
        _, line = inspect.getsourcelines(target)
        return f"{Path(inspect.getsourcefile(target) or '?').name}:{line}"
    except (OSError, TypeError):
        return str(getattr(sys.modules.get(target.__module__), "__file__", "?"))


def said(annotation: Any) -> str:
    """Return an annotation as people write it, without `Annotated`."""
    base, _ = split(annotation)
    written = base.__name__ if inspect.isclass(base) and not typing.get_args(base) else str(base)
    return written.removeprefix("typing.").replace(f"{d.__name__}.", "")
