"""The classes that a change or a series looks for, and those that hide the ground."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from penstock.errors import InvalidInput, Issue
from penstock.processors.geo.options import ClassLabel
from penstock.processors.geo.request import ChangeRequest, SeriesRequest


@dataclass(frozen=True, slots=True)
class WantedClasses:
    """Classes of a model that count as one, and classes that hide the ground."""

    labels: tuple[ClassLabel, ...]
    #: Ids of the classes that count as one.
    of: frozenset[int]
    #: Their common name in the results.
    name: str
    #: Ids of the classes that hide the ground.
    ignored: frozenset[int]
    #: True if the request says which classes hide the ground, or that none does.
    decided: bool

    def to_json(self) -> dict[str, Any]:
        """Return the names of both as an entry of the statistics."""
        named = {"of": self.of, "ignored": self.ignored}
        return {key: [label.name for label in self.labels if label.id in ids] for key, ids in named.items()}

    def undecided(self, seen: Collection[str]) -> str:
        """Return the classes outside `of` among the names of those that occur; empty if the request decides on them."""
        others = (label.name for label in self.labels if label.id not in self.of and label.name in seen)
        return "" if self.decided else ", ".join(others)


def wanted_classes(
    request: ChangeRequest | SeriesRequest, labels: Sequence[ClassLabel], field: Literal["change", "series"]
) -> WantedClasses:
    """Return the classes that a field of the request names; raise `InvalidInput` for others than the model's."""
    of = _ids(request.of, labels, f"/input/{field}/of")
    ignored = _ids(request.ignore, labels, f"/input/{field}/ignore")
    if of & ignored:
        raise InvalidInput(f"`{field}.of` and `{field}.ignore` name the same class.")
    name = request.name or " or ".join(label.name for label in labels if label.id in of)
    return WantedClasses(tuple(labels), of, name, ignored, "ignore" in request.model_fields_set)


def _ids(names: Sequence[str], labels: Sequence[ClassLabel], pointer: str) -> frozenset[int]:
    """Return the ids of classes by name; raise `InvalidInput` that lists the model's classes for an unknown name."""
    known = {label.name.casefold(): label.id for label in labels}
    for at, name in enumerate(names):
        if name.casefold() not in known:
            raise InvalidInput(
                f"The model has no class {name!r}; its classes are {', '.join(label.name for label in labels)}.",
                errors=[Issue(f"{pointer}/{at}", "is none of the model's classes")],
            )
    return frozenset(known[name.casefold()] for name in names)
