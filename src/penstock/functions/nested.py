"""Values with arrays in them as prompts and outputs carry them: arrays and plain values by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

#: Name of the places of the arrays in the plain value.
_PLACES = "places"
#: Names of the plain value in a prompt and in an output.
CALL, VALUE = "call", "value"
Place = Sequence[str | int]


def flat(value: Any, name: str = VALUE) -> dict[str, Any]:
    """Return a value of JSON, arrays and bytes as arrays and plain values by name."""
    places, arrays = list[Place](), list[Any]()
    plain = _without(value, (), places, arrays)
    by_number = {str(at): array for at, array in enumerate(arrays)}
    return {name: plain, _PLACES: [list(place) for place in places], **by_number}


def nested(data: Mapping[str, Any], name: str = VALUE) -> Any:
    """Return the value that `flat` took apart; bytes come back as arrays of uint8."""
    found = {name: data[name]}
    for at, place in enumerate(data[_PLACES]):
        holder: Any = found
        steps = [name, *place]
        for step in steps[:-1]:
            holder = holder[step]
        holder[steps[-1]] = data[str(at)]
    return found[name]


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
