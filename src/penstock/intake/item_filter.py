"""Filters of STAC items: a subset of CQL2 text, such as `eo:cloud_cover < 20 AND platform = 'sentinel-2a'`.

The library `cql2` parses a filter. The evaluation is our own, because it names the comparison that an item fails.
"""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import cql2

from penstock.errors import InvalidRequest, Issue
from penstock.json_body import shown

#: Characters of a filter, and parentheses and `NOT`s in it, at most: the parser is recursive.
MAX_CHARS, MAX_NESTED = 1000, 30

_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = MappingProxyType(
    {
        "=": operator.eq,
        "<>": operator.ne,
        "<": operator.lt,
        "<=": operator.le,
        ">": operator.gt,
        ">=": operator.ge,
    }
)
_KNOWN = "AND, OR, NOT, =, <>, <, <=, >, >=, BETWEEN, IN, LIKE and IS NULL"
_EXAMPLE = "eo:cloud_cover < 20"
#: The place in the library's message.
_COLUMN = re.compile(r"--> 1:(\d+)")
#: Members of an item that a filter may name beside its properties.
_MEMBERS = ("id", "collection")
_NESTING = re.compile(r"\(|\bnot\b|--", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The truth of a filter for an item: None where the item lacks a property. `reason` is for False and None."""

    truth: bool | None
    reason: str = ""


def parse_filter(text: str, *, place: str = "/filter") -> None:
    """Raise `InvalidRequest`, pointing to `place`, for a text that is no filter of this subset."""
    try:
        expression(text)
    except ValueError as error:
        raise InvalidRequest(errors=[Issue(place, str(error))]) from error


def why_not(text: str, item: Mapping[str, Any]) -> str | None:
    """Return the reason why an item does not pass a filter; None where it passes.

    An item without a property of the filter does not pass, unless the rest of the filter decides.
    """
    found = _judge(expression(text), item)
    return None if found.truth else found.reason or "does not pass the filter"


@lru_cache(maxsize=500)
def expression(text: str) -> Any:
    """Return the CQL2 JSON of a filter; raise `ValueError`, with a sentence, for any other text."""
    if len(text) > MAX_CHARS:
        raise ValueError(f"has {len(text)} characters; at most {MAX_CHARS} are allowed")
    if len(_NESTING.findall(text)) > MAX_NESTED:
        raise ValueError(f"has more than {MAX_NESTED} parentheses and NOTs")
    try:
        expression = cql2.parse_text(text).to_json()
    except Exception as error:  # the library raises its own errors without a common base
        column = _COLUMN.search(str(error))
        place = f" at character {column[1]}" if column else ""
        raise ValueError(f"is no CQL2 text{place}; an example is {_EXAMPLE}") from error
    _check(expression)
    return expression


def _check(node: Any) -> None:
    """Raise `ValueError` for an expression that is no condition of this subset."""
    match node:
        case {"op": "and" | "or", "args": [_, _, *_] as args}:
            for each in args:
                _check(each)
        case {"op": "not", "args": [inner]}:
            _check(inner)
        case {"op": "isNull", "args": [{"property": str()}]}:
            pass
        case {"op": "like", "args": [{"property": str()}, str()]}:
            pass
        case {"op": "between", "args": [value, low, high]}:
            _check_values(value, low, high)
        case {"op": "in", "args": [value, list(listed)]}:
            _check_values(value, *listed)
        case {"op": str(name), "args": [left, right]} if name in _COMPARISONS:
            _check_values(left, right)
        case {"op": str(name)}:
            raise ValueError(f"uses {name!r}, which is not supported; it may use {_KNOWN}")
        case _:
            raise ValueError(f"is no condition; an example is {_EXAMPLE}")


def _check_values(*nodes: Any) -> None:
    for node in nodes:
        match node:
            case {"property": str()} | str() | int() | float() | {"timestamp": str()} | {"date": str()}:
                pass
            case _:
                raise ValueError("compares something else than properties, numbers, texts, dates and timestamps")


def _judge(node: Any, item: Mapping[str, Any]) -> Judgement:
    match node["op"], node["args"]:
        case "and", args:
            return _all([_judge(each, item) for each in args])
        case "or", args:
            return _any([_judge(each, item) for each in args])
        case "not", [inner]:
            found = _judge(inner, item)
            return found if found.truth is None else Judgement(not found.truth, f"not ({_text(inner)}) is false")
        case "isNull", [named]:
            return _said(_value(named, item) is None, node, item)
        case "like", [named, pattern]:
            value = _value(named, item)
            return _said(_like(value, pattern) if isinstance(value, str) else None, node, item)
        case "between", [value, low, high]:
            bounds = [_compared(">=", value, low, item), _compared("<=", value, high, item)]
            return _said(None if None in bounds else all(bounds), node, item)
        case "in", [value, listed]:
            found_in = [_compared("=", value, each, item) for each in listed]
            return _said(True if True in found_in else None if None in found_in else False, node, item)
        case name, [left, right]:
            return _said(_compared(name, left, right, item), node, item)
    raise AssertionError(node)  # `_check` has seen it


def _all(found: Sequence[Judgement]) -> Judgement:
    failed = next((each for each in found if each.truth is False), None)
    return failed or next((each for each in found if each.truth is None), Judgement(True))


def _any(found: Sequence[Judgement]) -> Judgement:
    if any(each.truth for each in found):
        return Judgement(True)
    reason = "; ".join(dict.fromkeys(each.reason for each in found))
    return Judgement(None if any(each.truth is None for each in found) else False, reason)


def _said(truth: bool | None, node: Any, item: Mapping[str, Any]) -> Judgement:
    if truth:
        return Judgement(True)
    names = [each["property"] for each in node["args"] if isinstance(each, dict) and "property" in each]
    values = {name: _property(name, item) for name in names}
    missing = [name for name, value in values.items() if value is None]
    if missing and node["op"] != "isNull":
        return Judgement(None, f"has no {missing[0]}")
    have = ", ".join(f"{name} is {shown(value)}" for name, value in values.items())
    return Judgement(truth, f"{have}, but must be {_text(node)}" if have else f"{_text(node)} is false")


def _compared(name: str, left: Any, right: Any, item: Mapping[str, Any]) -> bool | None:
    """Return the result of a comparison; None for a missing value, and for values of two kinds."""
    first, second = _value(left, item), _value(right, item)
    if isinstance(first, datetime) != isinstance(second, datetime):
        first, second = parsed_time(first), parsed_time(second)
    if first is None or second is None or _kind(first) is not _kind(second):
        return None
    return _COMPARISONS[name](first, second)


def _value(node: Any, item: Mapping[str, Any]) -> Any:
    match node:
        case {"property": str(name)}:
            return _property(name, item)
        case {"timestamp": str(text)} | {"date": str(text)}:
            return parsed_time(text)
        case _:
            return node


def _property(name: str, item: Mapping[str, Any]) -> Any:
    value = item.get(name) if name in _MEMBERS else properties_of(item).get(name.removeprefix("properties."))
    return value if isinstance(value, str | int | float) else None


def _kind(value: Any) -> type:
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


def properties_of(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the properties of an item; none for one that has no object there."""
    found = item.get("properties")
    return found if isinstance(found, Mapping) else {}


def item_time(item: Mapping[str, Any], *names: str) -> datetime | None:
    """Return the first of an item's properties of these names that is a time, in UTC; None if it has none.

    Without names: its time, or the start of its interval.
    """
    names = names or ("datetime", "start_datetime")
    return next(filter(None, (parsed_time(properties_of(item).get(name)) for name in names)), None)


def parsed_time(value: Any) -> datetime | None:
    """Return a time of a catalogue in UTC, which it also has without a zone; None for anything that is no time."""
    try:
        time = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        return None


def _like(value: str, pattern: str) -> bool:
    """Return True for a text of the pattern: `%` stands for any text, `_` for one character."""
    shell = {"%": "*", "_": "?", "*": "[*]", "?": "[?]", "[": "[[]"}
    return fnmatch.fnmatchcase(value, "".join(shell.get(character, character) for character in pattern))


def _text(node: Any) -> str:
    return str(cql2.Expr(node).to_text())
