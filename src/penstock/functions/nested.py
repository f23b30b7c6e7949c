"""Values with arrays in them as prompts and outputs carry them: arrays and plain values by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

#: Names of the plain value, and of the places of the arrays in it.
_VALUE, _PLACES = "value", "places"
Place = Sequence[str | int]


def flat(value: Any) -> dict[str, Any]:
    """Return a value of JSON, arrays and bytes as arrays and plain values by name."""
    places, arrays = list[Place](), list[Any]()
    plain = _without(value, (), places, arrays)
    named = {str(at): array for at, array in enumerate(arrays)}
    return {_VALUE: plain, _PLACES: [list(place) for place in places], **named}


def nested(data: Mapping[str, Any]) -> Any:
    """Return the value that `flat` took apart; bytes come back as arrays of uint8."""
    found = {_VALUE: data[_VALUE]}
    for at, place in enumerate(data[_PLACES]):
        holder: Any = found
        steps = [_VALUE, *place]
        for step in steps[:-1]:
            holder = holder[step]
        holder[steps[-1]] = data[str(at)]
    return found[_VALUE]


def _without(value: Any, place: tuple[str | int, ...], places: list[Place], arrays: list[Any]) -> Any:
    if isinstance(value, Mapping):
        return {name: _without(one, (*place, name), places, arrays) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without(one, (*place, at), places, arrays) for at, one in enumerate(value)]
    if isinstance(value, bytes | bytearray | memoryview):
        value = np.frombuffer(value, np.uint8)
    if isinstance(value, np.ndarray):
        places.append(place)
        arrays.append(value)
        return None
    return value
