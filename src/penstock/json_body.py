"""Documents from outside: strict JSON within limits, and descriptions of errors in them."""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import accumulate, islice
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from penstock.errors import InvalidRequest, Issue, MalformedBody

#: Nested arrays and objects, at most.
MAX_DEPTH = 64
#: Names in all objects of a document together, at most.
MAX_NAMES = 50_000
#: Errors reported for one document, at most. The search for errors ends there.
MAX_ISSUES = 100
#: Names and values of a small document, at most. A model's schema checks about 100 per millisecond.
SMALL = 1000
#: Bytes that show most large documents to be large.
_BEGINNING = 16_384
#: Characters of a name or value from outside that a sentence shows.
SHOWN_CHARS = 80
#: Bits of an integer, at most: larger integers overflow in later readers.
MAX_INTEGER_BITS = 64

#: NUL, and lone surrogates, which JSON's escapes allow but no encoding does.
_NO_TEXT = re.compile("[\0\ud800-\udfff]")

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)

#: All bytes but JSON's structure and quotes.
_CONTENT = bytes(set(range(256)) - set(b'"{}[]:,'))
_STRING = re.compile(b'"[^"]*"')

Path = tuple[str | int, ...]
ModelT = TypeVar("ModelT", bound=BaseModel)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Document(Generic[T]):
    """A document from outside, read and validated."""

    value: T
    #: `fingerprint` of the document as it was sent.
    fingerprint: str


def read_document(read: Callable[[Any], T], data: bytes, path: str | None = None) -> Document[T]:
    """Return the JSON as `read` returns it; raise `MalformedBody` and the errors of `read`.

    With `path`, the fingerprint is that of the document under this path, which differs from its own.
    """
    value = parse_json(data)
    return Document(read(value), fingerprint(value if path is None else {"path": path, "body": value}))


def is_small(data: bytes) -> bool:
    """Return True for JSON of few names and values, which is parsed and validated in a few milliseconds."""
    return _tokens(data[:_BEGINNING]) <= SMALL and _tokens(data) <= SMALL


def is_small_value(value: Any) -> bool:
    """Return True for a value of few names and values, as `is_small` counts them."""
    left, waiting = SMALL, [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict | list):
            left -= len(item) * (2 if isinstance(item, dict) else 1)
            if left < 0:
                return False
            waiting.extend(item.values() if isinstance(item, dict) else item)
    return True


def parse_json(data: bytes) -> Any:
    """Return strict JSON as Python data, with or without a byte order mark; raise `MalformedBody`."""
    _check_structure(data)
    try:
        value = json.loads(data.decode("utf-8-sig"), parse_constant=_Constant, object_pairs_hook=_object)
        check_json(value)
    except UnicodeDecodeError as error:
        raise MalformedBody("the body is not UTF-8") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise MalformedBody(f"the body is not JSON: {error.msg} at {place}") from error
    except ValueError as error:  # an integer of more than 4300 digits
        raise MalformedBody("the body holds a number that is too long") from error
    return value


def check_json(value: Any) -> None:
    """Raise `MalformedBody` for a value that JSON cannot hold, or that is nested too deeply."""
    depth, level = 0, _containers((), [value])
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise MalformedBody(f"the body is nested more than {MAX_DEPTH} deep")
        level = [part for path, item in level for part in _containers(path, item)]


def shown(value: Any, most: int = SHOWN_CHARS) -> str:
    """Return a name or value from outside for a sentence: `most` characters of it, none that controls a terminal."""
    return "".join(character if character.isprintable() else "?" for character in str(value)[:most])


def require_json(value: Mapping[str, Any], *, of: str) -> None:
    """Raise `ValueError` for values that a JSON request cannot hold: TOML has nan, inf and dates."""
    try:
        check_json(dict(value))
    except MalformedBody as error:
        wrong = [f"{each.pointer.lstrip('/').replace('/', '.')} {each.detail}" for each in error.errors]
        raise ValueError(f"{'; '.join(wrong) or error.detail} ({of})") from error


def validated(model: type[ModelT], value: Any) -> ModelT:
    """Return the body as the model; raise `InvalidRequest` with a pointer for each invalid field."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise InvalidRequest(errors=issues(error.errors(include_url=False, include_context=False), value)) from error


def fingerprint(value: Any) -> str:
    """Return the SHA-256 of the canonical form of a body: equal for equal JSON, in any layout."""
    text = _CANONICAL.encode(value)
    return hashlib.sha256(text.encode()).hexdigest()


def issues(found: Iterable[Mapping[str, Any]], value: Any, *, under: str = "") -> tuple[Issue, ...]:
    """Return pydantic's errors of `value` as issues, at most `MAX_ISSUES`; `under` is the pointer of the value itself.

    For a value that may have several types, only errors about the type that it has are returned, if there are any.
    `must be None` is only returned where there is no other error.
    """
    everything = [(_place(error, value), error) for error in found]
    inside = {path[:n] for path, _ in everything for n in range(len(path))}
    placed = [(path, error) for path, error in everything if not _is_of_dropped_items(path, error, inside)]
    fitting = {path[:n] for path, error in placed if not _is_of_another_type(error) for n in range(len(path) + 1)}
    typed = {path[:n] for path, error in placed if error["type"] != "none_required" for n in range(len(path) + 1)}
    told = (
        _issue(path, error, under)
        for path, error in placed
        if not _is_of_another_type(error)
        or not (path in fitting or (error["type"] == "none_required" and path in typed))
    )
    return first_issues(told, MAX_ISSUES)


def first_issues(found: Iterable[Issue], most: int) -> tuple[Issue, ...]:
    """Return the first issues, each once, and look for no more than `most`."""
    return tuple(islice(_each_once(found), most))


def _each_once(found: Iterable[Issue]) -> Iterator[Issue]:
    seen: set[Issue] = set()
    for issue in found:
        if issue not in seen:
            seen.add(issue)
            yield issue


def _place(error: Mapping[str, Any], value: Any) -> Path:
    """Return the path of an error in the value: its `loc` without the names of the types that were tried."""
    path: list[str | int] = []
    *_, last = loc = error["loc"] or ("",)
    for step in loc:
        known = step in value if isinstance(value, Mapping) else isinstance(value, list | tuple) and type(step) is int
        if known:
            path.append(step)
            value = value[step]
    return (*path, last) if error["type"] == "missing" else tuple(path)


def _is_of_dropped_items(path: Path, error: Mapping[str, Any], inside: Container[Path]) -> bool:
    """Return True if an array counts as too short only because pydantic does not count its invalid items.

    `inside` has the paths of all values that have an error inside them.
    """
    return error["type"] == "too_short" and path in inside


def _is_of_another_type(error: Mapping[str, Any]) -> bool:
    return error["type"] == "none_required" or str(error["type"]).endswith(("_type", "_parsing"))


def _issue(path: Path, error: Mapping[str, Any], under: str) -> Issue:
    said = sentence(error)
    if error["loc"][-1:] == ("[key]",):  # of a mapping: the name itself is wrong
        return Issue(under + pointer(path[:-1]), f"the name {str(path[-1])[:_NAME_CHARS]!r} {said}")
    return Issue(under + pointer(path), said)


#: Characters of a name in a message, at most.
_NAME_CHARS = 40
#: Messages that replace pydantic's, by error type.
_SENTENCES = {
    "missing": "is required",
    "extra_forbidden": "is not known",
    "model_type": "must be an object",
    "dict_type": "must be an object",
    "list_type": "must be an array",
    "tuple_type": "must be an array",
    "timezone_aware": "must have a time zone, such as Z",
}
#: Parts of pydantic's messages that are removed.
_PYDANTICS = re.compile("^Value error, | after validation")


def sentence(error: Mapping[str, Any]) -> str:
    """Return the message of an error, without a subject: `must be greater than 0`."""
    return _SENTENCES.get(error["type"]) or plainly(str(error["msg"]))


def plainly(said: str) -> str:
    """Return pydantic's message in plain words, without a subject."""
    return re.sub(r"^\w+ should ", "must ", _PYDANTICS.sub("", said))


def wrong_fields(error: ValidationError, *, whole: str = "", under: Path = (), known: Iterable[str] = ()) -> str:
    """Return the errors in an operator's table: `port: must be less than 65536; colour: is not known`.

    `under` is the path of the table, `whole` its name for errors that concern no single field. For an unknown name the
    nearest one of `known` is suggested.
    """
    names = tuple(known)

    def said(found: Mapping[str, Any]) -> str:
        near = get_close_matches(str(found["loc"][-1]), names, n=1) if found["type"] == "extra_forbidden" else ()
        return sentence(found) + (f" (did you mean {near[0]}?)" if near else "")

    found = error.errors(include_url=False, include_context=False)
    return "; ".join(f"{'.'.join(map(str, (*under, *e['loc']))) or whole}: {said(e)}" for e in found)


def toml_complaint(file: object, error: tomllib.TOMLDecodeError) -> str:
    """Return the error in a TOML file with its place in front: `penstock.toml line 2: ...`."""
    said = str(error)
    at = re.search(r" \(at line (\d+), ", said)
    return f"{file}: {said}" if at is None else f"{file} line {at[1]}: {said[: at.start()]}"


def pointer(path: Iterable[str | int]) -> str:
    """Return the JSON pointer (RFC 6901) of a path."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


@dataclass(frozen=True, slots=True)
class _Constant:
    """`NaN`, `Infinity` or `-Infinity` in JSON, which Python reads and the standard does not have."""

    name: str


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; a duplicate name is an error, since two readers may choose different values."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise MalformedBody(f"an object has the name {name[:_NAME_CHARS]!r} twice")
        found[name] = value
    return found


def _check_structure(data: bytes) -> None:
    """Count the names and the depth of a body before parsing; raise `MalformedBody` beyond the limits.

    The counts of invalid JSON are right up to its first error, where the parser stops.
    """
    if data.count(b":") <= MAX_NAMES and _opened(data) <= MAX_DEPTH:
        return  # even with the characters in strings
    structure = _structure(data)
    steps = (1 if byte in b"{[" else -1 for byte in structure.translate(None, b":,"))
    if max(accumulate(steps), default=0) > MAX_DEPTH:
        raise MalformedBody(f"the body is nested more than {MAX_DEPTH} deep")
    if structure.count(b":") > MAX_NAMES:
        raise MalformedBody(f"the body has more than {MAX_NAMES} names; send less at a time, or upload a file")


def _structure(data: bytes) -> bytes:
    """Return JSON without strings, numbers and spaces. A string without an end ends the result."""
    bare = data.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _CONTENT)
    return _STRING.sub(b"", bare.replace(b'""', b"")).partition(b'"')[0]


def _tokens(data: bytes) -> int:
    return data.count(b",") + data.count(b":") + _opened(data)


def _opened(data: bytes) -> int:
    return data.count(b"{") + data.count(b"[")


def _containers(path: Path, item: list[Any] | dict[str, Any]) -> list[tuple[Path, list[Any] | dict[str, Any]]]:
    """Return the arrays and objects directly inside, with their places; raise `MalformedBody` for invalid values."""
    found = []
    for step, value in item.items() if isinstance(item, dict) else enumerate(item):
        if isinstance(step, str) and _NO_TEXT.search(step):
            raise _malformed(path, "has a name with a character that is not text")
        if isinstance(value, list | dict):
            found.append(((*path, step), value))
        elif (wrong := _complaint(value)) is not None:
            raise _malformed((*path, step), wrong)
    return found


def _complaint(value: object) -> str | None:
    """Return the error in a value other than an array or object; None if the value is valid."""
    match value:
        case str():
            return "holds a character that is not text" if _NO_TEXT.search(value) else None
        case int():
            return None if value.bit_length() <= MAX_INTEGER_BITS else "is too large a number"
        case float():
            return None if math.isfinite(value) else "is not a number" if math.isnan(value) else "is too large a number"
        case None:
            return None
        case _Constant(name):
            return f"is {name}, which JSON does not have: write a number or null"
        case _:
            return f"is a {type(value).__name__}, which JSON does not have: write a text in quotes"


def _malformed(path: Path, what: str) -> MalformedBody:
    place = pointer(path[1:])  # the body was wrapped in a list
    return MalformedBody(f"{place or 'the body'} {what}", errors=[Issue(place, what)])
