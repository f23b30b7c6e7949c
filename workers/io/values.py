"""What prompts and outputs hold, as JSON and plain bytes: nothing here is ever unpickled or evaluated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import ProcessorFailed
from penstock.processors.base import Value
from penstock.workers.io.memory import Buffer

#: Booleans, integers, floats and complex numbers, with their byte order and size.
_DTYPE = re.compile(r"[<>|=][biufc][0-9]{1,2}")
#: Arrays begin at multiples of this: a cache line.
_ALIGN_BYTES = 64
_MAX_ARRAYS = 256
_MAX_DIMENSIONS = 32

#: What is told of an array: its dtype and its shape.
Layout = dict[str, tuple[str, list[int]]]


@dataclass(frozen=True, slots=True)
class Packed:
    """Values ready to cross: plain ones as JSON, arrays as a layout and the buffers that it describes."""

    plain: dict[str, Any]
    layout: Layout
    parts: list[Buffer]
    size_bytes: int


def pack(data: Mapping[str, Value]) -> Packed:
    """Take values apart; raise `ProcessorFailed` for an array that cannot cross (of objects, dates or text)."""
    plain: dict[str, Any] = {}
    layout: Layout = {}
    parts: list[Buffer] = []
    size = 0
    for name, value in data.items():
        if not isinstance(value, np.ndarray | np.generic):
            plain[name] = value
            continue
        array = np.asarray(value, order="C")
        if not _DTYPE.fullmatch(array.dtype.str) or len(layout) == _MAX_ARRAYS:
            raise ProcessorFailed(f"{name!r} is an array of {array.dtype}, and only numbers and booleans can cross")
        layout[name] = array.dtype.str, list(array.shape)
        if array.nbytes:
            gap = -size % _ALIGN_BYTES
            parts += [bytes(gap)] if gap else []
            parts.append(array.reshape(-1).view(np.uint8).data)
            size += gap + array.nbytes
    return Packed(plain, layout, parts, size)


def unpack(layout: Any, buffer: Buffer, size_bytes: int) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a layout, as views of the buffer; raise `ValueError` for a layout that does not fit it."""
    if not isinstance(layout, dict) or len(layout) > _MAX_ARRAYS:
        raise ValueError("no layout of arrays")
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
    raise ValueError("no description of an array")
