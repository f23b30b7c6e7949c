"""Conditions on the properties of STAC items: `eo:cloud_cover < 20 and platform = 'sentinel-2a'`. Pure.

The form is a part of CQL2 text: comparisons of a property with a number, a quoted text or true and false, joined by
`and`. A server that knows filters gets the conditions; `holds` checks them again here, for all other servers.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import InvalidInput

_OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt, "<=": operator.le, "=": operator.eq, "<>": operator.ne, ">=": operator.ge, ">": operator.gt,
}  # fmt: skip
#: Operators of the older `query` of STAC APIs.
_QUERY: Final = {"<": "lt", "<=": "lte", "=": "eq", "<>": "neq", ">=": "gte", ">": "gt"}
_NUMBER: Final = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
_CONDITION: Final = re.compile(
    r'\s*(?:"(?P<quoted>[^"]+)"|(?P<name>[A-Za-z_][\w:.-]*))\s*(?P<operator><=|>=|<>|<|>|=)\s*'
    rf"(?:(?P<number>{_NUMBER})|'(?P<text>(?:[^']|'')*)'|(?P<flag>(?i:true|false))\b)\s*"
)
_AND: Final = re.compile(r"(?i:and)\b")


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of a property of an item, such as `eo:cloud_cover`, with a value."""

    name: str
    operator: str
    value: float | str | bool

    def holds(self, item: Mapping[str, Any]) -> bool:
        """Return True for an item that has the property, with a value of the same kind for which this is true."""
        properties = item.get("properties")
        found = properties.get(self.name) if isinstance(properties, Mapping) else None
        if self.name in ("id", "collection"):
            found = item.get(self.name)
        numbers = isinstance(self.value, float) and isinstance(found, int | float) and not isinstance(found, bool)
        if not numbers and type(found) is not type(self.value):
            return False
        return _OPERATORS[self.operator](found, self.value)


def parse_filter(text: str) -> tuple[Condition, ...]:
    """Return the conditions of a filter; raise `InvalidInput`, which shows the place, for any other text."""
    found, at = list[Condition](), 0
    while True:
        match = _CONDITION.match(text, at)
        if match is None:
            raise InvalidInput(
                f"The filter cannot be read from {text[at : at + 40]!r} on: write comparisons such as "
                "\"eo:cloud_cover < 20 and platform = 'sentinel-2a'\"."
            )
        found.append(Condition(match["quoted"] or match["name"], match["operator"], _value(match)))
        at = match.end()
        if at == len(text):
            return tuple(found)
        joint = _AND.match(text, at)
        if joint is None:
            raise InvalidInput(f"The filter has {text[at : at + 40]!r} where `and` should stand.")
        at = joint.end()


def cql2(conditions: Sequence[Condition]) -> dict[str, Any]:
    """Return conditions as CQL2 JSON."""
    each = [{"op": one.operator, "args": [{"property": one.name}, one.value]} for one in conditions]
    return each[0] if len(each) == 1 else {"op": "and", "args": each}


def query(conditions: Sequence[Condition]) -> dict[str, Any]:
    """Return conditions as the `query` of STAC APIs before CQL2."""
    found: dict[str, dict[str, Any]] = {}
    for one in conditions:
        found.setdefault(one.name, {})[_QUERY[one.operator]] = one.value
    return found


def _value(match: re.Match[str]) -> float | str | bool:
    if match["number"] is not None:
        return float(match["number"])
    return match["text"].replace("''", "'") if match["text"] is not None else match["flag"].lower() == "true"
