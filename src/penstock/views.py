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
#: plain values.
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
    #: JSON pointer to the part; the step `*` stands for each item of a list or object: `/images/*/labels`.
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
    """Return the parts of a result that the views name, in order; a view of what is not there shows nothing."""
    return [
        Shown(view.form, heading, items)
        for view in views
        for heading, items in _found(data or {}, view.at.split("/")[1:], view.each, "")
        if isinstance(items, list) and items
    ]


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
