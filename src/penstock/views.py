"""Views: how people read the JSON of a result.

A processor declares the views of its answers as data: a place in the JSON, and one of few forms. Programs that show
answers follow the views and know no kind of model. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

#: `labels`: objects with `label` and `score`, best first. `boxes`: objects with `label`, `score` and `box` in pixels.
#: `vectors`: lists of numbers. `passages`: objects with `start` and `end` in seconds, and `text`. `rows`: objects, or
#: plain values; or one object, whose members are the rows.
Form = Literal["labels", "boxes", "vectors", "passages", "rows"]


#: Members that each item of a form has.
_MEMBERS: Mapping[Form, frozenset[str]] = {
    "labels": frozenset({"label", "score"}),
    "boxes": frozenset({"label", "score", "box"}),
    "passages": frozenset({"start", "end", "text"}),
}


@dataclass(frozen=True, slots=True)
class View:
    """A part of a result's JSON, and its form."""

    form: Form
    #: JSON pointer to the part, "" for the whole; the step `*` stands for each item of a list or object:
    #: `/images/*/labels`.
    at: str
    #: The noun of one item at `*`: `image`.
    each: str = ""


@dataclass(frozen=True, slots=True)
class Shown:
    """A part of a result that exists, with its heading: `image 2`; empty where there is only one."""

    form: Form
    heading: str
    items: Sequence[Any]

    @property
    def fits(self) -> bool:
        """True where each item has what its form promises."""
        if self.form == "rows":
            return True
        if self.form == "vectors":
            return all(isinstance(item, list) for item in self.items)
        return all(isinstance(item, Mapping) and _MEMBERS[self.form] <= item.keys() for item in self.items)


def shown(views: Sequence[View], data: Mapping[str, Any] | None) -> list[Shown]:
    """Return the parts of a result that the views name, in order; a view of what is not there shows nothing.

    What an earlier part has is not shown again: the labels of a short recording are those of its only window.
    """
    parts: list[Shown] = []
    for view in views:
        for heading, found in _found(data or {}, view.at.split("/")[1:], view.each, ""):
            items = _rows(found) if view.form == "rows" else found
            repeated = not heading and any(part.form == view.form and part.items == items for part in parts)
            if isinstance(items, list) and items and not repeated:
                parts.append(Shown(view.form, heading, items))
    return parts


def found_nothing(views: Sequence[View], data: Mapping[str, Any] | None) -> bool:
    """Return True where the views name only empty lists: a network that found no object, say."""
    lists = [
        found
        for view in views
        for _, found in _found(data or {}, view.at.split("/")[1:], view.each, "")
        if isinstance(found, list)
    ]
    return bool(lists) and not any(lists)


def _rows(found: Any) -> Any:
    """Return an object as rows of its members, and one value as a row."""
    if isinstance(found, Mapping):
        return _members(found)
    return [found] if isinstance(found, str | int | float) else found


def _members(value: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name, "value": each} for name, each in value.items() if each is not None]


def _found(value: Any, steps: Sequence[str], each: str, heading: str) -> Iterator[tuple[str, Any]]:
    if not steps:
        yield heading, value
    elif steps[0] == "*":
        items = value.items() if isinstance(value, Mapping) else _numbered(value)
        for name, item in items:
            yield from _found(item, steps[1:], each, f"{each} {name}".strip() if name else "")
    elif isinstance(value, Mapping) and steps[0] in value:
        yield from _found(value[steps[0]], steps[1:], each, heading)


def _numbered(value: Any) -> Iterator[tuple[str, Any]]:
    items = value if isinstance(value, list) else []
    for number, item in enumerate(items, start=1):
        yield (str(number) if len(items) > 1 else ""), item
