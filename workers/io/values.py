"""The values of prompts and outputs as JSON and plain bytes: nothing is ever unpickled or evaluated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import ProcessorFailed
from penstock.functions.memory import Buffer
from penstock.functions.wire import MAX_ARRAYS
from penstock.processors.base import Value

#: Booleans, integers, floats and complex numbers, with their byte order and size.
_DTYPE = re.compile(r"[<>|=][biufc][0-9]{1,2}")
#: Bytes of a cache line: arrays begin at multiples of it.
_ALIGN_BYTES = 64
_MAX_DIMENSIONS = 32

#: The dtype and shape of each array, by name.
Layout = dict[str, tuple[str, list[int]]]


@dataclass(frozen=True, slots=True)
class Packed:
    """Values ready to send: plain ones as JSON, arrays as a layout and buffers."""

    plain: dict[str, Any]
    layout: Layout
    parts: list[Buffer]
    size_bytes: int


def pack(data: Mapping[str, Value]) -> Packed:
    """Split values into JSON and buffers; raise `ProcessorFailed` for arrays of objects, dates or text."""
    plain: dict[str, Any] = {}
    layout: Layout = {}
    parts: list[Buffer] = []
    size = 0
    for name, value in data.items():
        if not isinstance(value, np.ndarray | np.generic):
            plain[name] = value
            continue
        array = np.asarray(value, order="C")
        if len(layout) == MAX_ARRAYS:
            raise ProcessorFailed(f"a prompt or an output has more than {MAX_ARRAYS:,} arrays: give fewer at a time")
        if not _DTYPE.fullmatch(array.dtype.str):
            raise ProcessorFailed(f"{name!r} is an array of {array.dtype}; only numbers and booleans can be sent")
        layout[name] = array.dtype.str, list(array.shape)
        if array.nbytes:
            gap = -size % _ALIGN_BYTES
            parts += [bytes(gap)] if gap else []
            parts.append(array.reshape(-1).view(np.uint8).data)
            size += gap + array.nbytes
    return Packed(plain, layout, parts, size)


def unpack(layout: Any, buffer: Buffer, size_bytes: int) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a layout as views of a buffer; raise `ValueError` unless they fill it."""
    if not isinstance(layout, dict) or len(layout) > MAX_ARRAYS:
        raise ValueError("the layout of arrays is invalid")
    arrays: dict[str, npt.NDArray[Any]] = {}
    end = 0
    for name, row in layout.items():
        dtype, shape = _described(row)
        nbytes = dtype.itemsize * prod(shape)
        if not nbytes:
            arrays[name] = np.empty(shape, dtype)
            continue
        begin = end + -end % _ALIGN_BYTES
        end = begin + nbytes
        if end > size_bytes:
            raise ValueError("the arrays are larger than their memory")
        arrays[name] = np.ndarray(shape, dtype, buffer, begin)
    if end != size_bytes:
        raise ValueError("the arrays are smaller than their memory")
    return arrays


def _described(row: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    match row:
        case [str(dtype), [*shape]] if _DTYPE.fullmatch(dtype) and len(shape) <= _MAX_DIMENSIONS:
            if all(type(length) is int and length >= 0 for length in shape):
                return np.dtype(dtype), tuple(shape)
    raise ValueError("the description of an array is invalid")
