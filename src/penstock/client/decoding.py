"""Decoding of JSON documents into dataclasses, by the names and types of their fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date
from enum import Enum
from functools import cache
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


def at(path: str) -> dict[str, str]:
    """Return the metadata of a field whose value has another place: a path such as `output.text`; empty: all."""
    return {"path": path}


def read(kind: type[T], document: Mapping[str, Any]) -> T:
    """Return a document as a dataclass. A field that is missing or null has its default; other names are ignored.

    Raises `TypeError` for a missing field without a default, and `ValueError` for a value that its type rejects.
    """
    values = {each.name: _found(document, each.metadata.get("path", each.name)) for each in fields(kind)}
    types = _types(kind)
    return kind(**{name: _value(types[name], value) for name, value in values.items() if value is not None})


@cache
def _types(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _found(document: Any, path: str) -> Any:
    for name in path.split(".") if path else ():
        document = document.get(name) if isinstance(document, Mapping) else None
    return document


def _value(kind: Any, found: Any) -> Any:
    """Return a JSON value as a type: a time from ISO 8601, an enum, a dataclass, a tuple of values, or `T | None`."""
    if NoneType in get_args(kind):
        [kind] = (part for part in get_args(kind) if part is not NoneType)
    if get_origin(kind) is tuple:
        return tuple(_value(get_args(kind)[0], each) for each in found)
    if not isinstance(kind, type):
        return found
    if is_dataclass(kind):
        return read(kind, found)
    if issubclass(kind, date):  # and `datetime`, its subclass
        return kind.fromisoformat(found)
    return kind(found) if issubclass(kind, str | int | float | Enum) else found
