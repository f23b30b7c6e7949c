"""Values with arrays in them as prompts and outputs carry them: arrays and plain values by name."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np

from penstock.functions.wire import put_in, take_out

#: Names of the plain value in a prompt and in an output, and of the places of the arrays in it.
CALL, VALUE, PLACES = "call", "value", "places"


def flat(value: Any, name: str = VALUE) -> dict[str, Any]:
    """Return a value of JSON, arrays and bytes as arrays and plain values by name."""
    plain, found = take_out(value)
    arrays = {str(at): _array(array) for at, (_, array) in enumerate(found)}
    return {name: plain, PLACES: [list(place) for place, _ in found], **arrays}


def nested(data: Mapping[str, Any], name: str = VALUE) -> Any:
    """Return the value that `flat` took apart; bytes come back as arrays of uint8."""
    holder = {name: deepcopy(data[name])}  # JSON: its arrays are elsewhere
    for at, place in enumerate(data[PLACES]):
        put_in(holder, [name, *place], data[str(at)])
    return holder[name]


def _array(value: Any) -> Any:
    return np.frombuffer(value, np.uint8) if isinstance(value, bytes | bytearray | memoryview) else value
