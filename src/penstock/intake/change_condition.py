"""Conditions on the change between two results: `gained(water) > 2 km2 ignoring cloud, cloud shadow`. Pure.

    condition   term {and term} {or term {and term}} [ignoring CLASS {, CLASS}]
    term        area|gained|lost ( CLASS {, CLASS} ) <|<=|>|>= NUMBER m2|ha|km2

`area` is the area now, `gained` that of pixels that have one of the classes now and had none of them before, `lost` the
reverse. Pixels without data, or of a class that is ignored, at either date count for neither. Several classes count as
one. A condition holds where it holds in one polygon of the area.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, cast

from penstock.errors import InvalidRequest, Issue

MAX_CHARS = 500
Measure = Literal["area", "gained", "lost"]

_UNITS_M2 = {"m2": 1.0, "ha": 1e4, "km2": 1e6}
_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = MappingProxyType(
    {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
)
_TERM = re.compile(
    r"\s*(?P<measure>area|gained|lost)\s*\((?P<classes>[^()]+)\)\s*(?P<sign><=|>=|<|>)\s*"
    r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>m2|ha|km2)\s*"
)
_WORD = re.compile(r"(and|or|ignoring)\b", re.IGNORECASE)
_EXAMPLE = "an example is gained(water) > 2 km2 ignoring cloud, cloud shadow"


@dataclass(frozen=True, slots=True)
class Quantity:
    """A quantity in m²: the area of some classes, or their gain or loss."""

    measure: Measure
    classes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.measure}({', '.join(self.classes)})"


@dataclass(frozen=True, slots=True)
class Term:
    """A comparison of a quantity with a number of m²."""

    quantity: Quantity
    sign: str
    m2: float


@dataclass(frozen=True, slots=True)
class Condition:
    """A parsed condition: alternatives, of each of which all terms must hold."""

    alternatives: tuple[tuple[Term, ...], ...]
    #: Classes that hide the ground.
    ignored: tuple[str, ...] = ()

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        """All quantities, each once."""
        return tuple(dict.fromkeys(term.quantity for terms in self.alternatives for term in terms))

    @property
    def compares(self) -> bool:
        """True if it needs an earlier result."""
        return any(quantity.measure != "area" for quantity in self.quantities)

    def holds(self, found: Mapping[Quantity, float]) -> bool:
        """Return True if the condition holds for the quantities of one polygon, in m²."""
        return any(
            all(_COMPARISONS[term.sign](found[term.quantity], term.m2) for term in terms) for terms in self.alternatives
        )


def parse_condition(text: str, *, place: str = "/condition") -> Condition:
    """Return a condition; raise `InvalidRequest`, pointing to `place`, for a text that is none."""
    try:
        return _parsed(text)
    except ValueError as error:
        raise InvalidRequest(errors=[Issue(place, str(error))]) from error


def _parsed(text: str) -> Condition:
    if len(text) > MAX_CHARS:
        raise ValueError(f"has {len(text)} characters; at most {MAX_CHARS} are allowed")
    alternatives: list[list[Term]] = [[]]
    at, word = 0, "and"
    while word != "ignoring":
        if word == "or":
            alternatives.append([])
        term = _TERM.match(text, at)
        if term is None:
            raise ValueError(f"{text[at : at + 40].strip()!r} is no comparison of an area; {_EXAMPLE}")
        quantity = Quantity(cast("Measure", term["measure"]), _names(term["classes"]))
        alternatives[-1].append(Term(quantity, term["sign"], float(term["number"]) * _UNITS_M2[term["unit"]]))
        at = term.end()
        if at == len(text):
            return Condition(tuple(map(tuple, alternatives)))
        joined = _WORD.match(text, at)
        if joined is None:
            raise ValueError(f"{text[at : at + 40].strip()!r} is neither and, or nor ignoring; {_EXAMPLE}")
        at, word = joined.end(), joined[0].lower()
    return Condition(tuple(map(tuple, alternatives)), _names(text[at:]))


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(" ".join(name.split()) for name in text.split(",")))
    if "" in names:
        raise ValueError(f"has an empty class name; {_EXAMPLE}")
    return names
