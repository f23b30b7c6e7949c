"""Documents from outside: JSON read strictly, within limits, and what is wrong with one in words and pointers."""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from penstock.errors import InvalidRequest, MalformedBody
from penstock.reports import Issue

#: How deeply arrays and objects may be nested.
MAX_DEPTH = 64
#: Larger ones overflow in whatever reads them next.
MAX_INTEGER_BITS = 64

#: NUL; and lone surrogates, which are legal in JSON's escapes and in no encoding.
_NO_TEXT = re.compile("[\0\ud800-\udfff]")

Path = tuple[str | int, ...]
ModelT = TypeVar("ModelT", bound=BaseModel)


def parse_json(data: bytes) -> Any:
    """Return strict JSON as Python data; raise `MalformedBody`."""
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_object)
        _check(value)
    except UnicodeDecodeError as error:
        raise MalformedBody("the body is not UTF-8") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise MalformedBody(f"the body is not JSON: {error.msg} at {place}") from error
    except RecursionError as error:
        raise MalformedBody(f"the body is nested more than {MAX_DEPTH} deep") from error
    except ValueError as error:  # an integer of more than 4300 digits
        raise MalformedBody("the body holds a number that is too long") from error
    return value


def require_json(value: Mapping[str, Any], *, of: str) -> None:
    """Raise `ValueError` for what a request could not hold in data from elsewhere: TOML has nan, inf and dates."""
    try:
        _check(dict(value))
    except MalformedBody as error:
        wrong = [f"{each.pointer.lstrip('/').replace('/', '.')} {each.detail}" for each in error.errors]
        raise ValueError(f"{'; '.join(wrong) or error.detail} ({of})") from error


def validated(model: type[ModelT], value: Any) -> ModelT:
    """Return the body as the model; raise `InvalidRequest` with a pointer for each field that does not fit."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise InvalidRequest(errors=issues(error.errors(include_url=False, include_context=False), value)) from error


def fingerprint(value: Any) -> str:
    """Return the SHA-256 of the canonical form of a body: equal for equal JSON, whatever its layout."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def issues(found: Iterable[Mapping[str, Any]], value: Any, *, under: str = "") -> tuple[Issue, ...]:
    """Return pydantic's errors of `value` as issues; `under` is the pointer of the value itself.

    Of what may have several types, only that is told which is about the type that it has, if any.
    """
    everything = [(_place(error, value), error) for error in found]
    paths = [path for path, _ in everything]
    placed = [(path, error) for path, error in everything if not _is_of_what_was_left(path, error, paths)]
    fitting = [path for path, error in placed if not _is_of_another_type(error)]
    typed = {path for path, error in placed if error["type"] != "none_required"}
    told = (
        _issue(path, error, under)
        for path, error in placed
        if not _is_of_another_type(error)
        or not (
            any(fits[: len(path)] == path for fits in fitting) or (error["type"] == "none_required" and path in typed)
        )
    )
    return tuple(dict.fromkeys(told))


def _place(error: Mapping[str, Any], value: Any) -> Path:
    """Return where in the value an error lies: its `loc` without the names of the types that were tried."""
    path: list[str | int] = []
    *_, last = loc = error["loc"] or ("",)
    for step in loc:
        known = step in value if isinstance(value, Mapping) else isinstance(value, list | tuple) and type(step) is int
        if known:
            path.append(step)
            value = value[step]
    return (*path, last) if error["type"] == "missing" else tuple(path)


def _is_of_what_was_left(path: Path, error: Mapping[str, Any], paths: Iterable[Path]) -> bool:
    """Whether pydantic finds an array too short because items of it were refused, which it does not count."""
    return error["type"] == "too_short" and any(other != path and other[: len(path)] == path for other in paths)


def _is_of_another_type(error: Mapping[str, Any]) -> bool:
    return error["type"] == "none_required" or str(error["type"]).endswith(("_type", "_parsing"))


def _issue(path: Path, error: Mapping[str, Any], under: str) -> Issue:
    said = sentence(error)
    if error["loc"][-1:] == ("[key]",):  # of a mapping: the name itself is wrong
        return Issue(under + pointer(path[:-1]), f"the name {str(path[-1])[:_NAME_CHARS]!r} {said}")
    return Issue(under + pointer(path), said)


#: Of a name that is too long, in a sentence.
_NAME_CHARS = 40
#: What pydantic says in Python's words.
_SENTENCES = {
    "missing": "is required",
    "extra_forbidden": "is not known",
    "model_type": "must be an object",
    "dict_type": "must be an object",
    "list_type": "must be an array",
    "tuple_type": "must be an array",
    "timezone_aware": "must have a time zone, such as Z",
}
#: What it says beside the sentence.
_PYDANTICS = re.compile("^Value error, | after validation")


def sentence(error: Mapping[str, Any]) -> str:
    """Return what is wrong with a value, without a subject: `must be greater than 0`."""
    return _SENTENCES.get(error["type"]) or plainly(str(error["msg"]))


def plainly(said: str) -> str:
    """Return what pydantic says of a value without its own words, and without a subject."""
    return re.sub(r"^\w+ should ", "must ", _PYDANTICS.sub("", said))


def wrong_fields(error: ValidationError, *, whole: str = "", under: Path = ()) -> str:
    """Return what is wrong with a table that an operator wrote: `port: must be less than 65536; colour: is not known`.

    `under` is the path of the table itself, `whole` what it is called where no field of it is wrong.
    """
    found = error.errors(include_url=False, include_context=False)
    return "; ".join(f"{'.'.join(map(str, (*under, *e['loc']))) or whole}: {sentence(e)}" for e in found)


def toml_complaint(file: object, error: tomllib.TOMLDecodeError) -> str:
    """Return what is wrong with a file of TOML with the place in front: `penstock.toml line 2: ...`."""
    said = str(error)
    at = re.search(r" \(at line (\d+), ", said)
    return f"{file}: {said}" if at is None else f"{file} line {at[1]}: {said[: at.start()]}"


def pointer(path: Iterable[str | int]) -> str:
    """Return the JSON pointer (RFC 6901) of a path."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def _refuse_constant(name: str) -> NoReturn:
    raise MalformedBody(f"{name} is not JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; of a name that stands there twice two readers may take different values."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise MalformedBody(f"an object has the name {name[:_NAME_CHARS]!r} twice")
        found[name] = value
    return found


def _check(value: Any) -> None:
    depth, level = 0, _containers((), [value])
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise MalformedBody(f"the body is nested more than {MAX_DEPTH} deep")
        level = [part for path, item in level for part in _containers(path, item)]


def _containers(path: Path, item: list[Any] | dict[str, Any]) -> list[tuple[Path, list[Any] | dict[str, Any]]]:
    """Return the arrays and objects directly inside with their places; raise `MalformedBody` if the rest is no JSON."""
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
    """Return what is wrong with a value that is no array or object, None if it is JSON."""
    match value:
        case str():
            return "holds a character that is not text" if _NO_TEXT.search(value) else None
        case int():
            return None if value.bit_length() <= MAX_INTEGER_BITS else "is too large a number"
        case float():
            return None if math.isfinite(value) else "is not a number" if math.isnan(value) else "is too large a number"
        case None:
            return None
        case _:
            return f"is a {type(value).__name__}, which JSON has not: a text in quotes is meant"


def _malformed(path: Path, what: str) -> MalformedBody:
    place = pointer(path[1:])  # the body stands in a list of its own
    return MalformedBody(f"{place or 'the body'} {what}", errors=[Issue(place, what)])
