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
from penstock.processors.base import Value
from penstock.workers.io.memory import Buffer

#: Booleans, integers, floats and complex numbers, with their byte order and size.
_DTYPE = re.compile(r"[<>|=][biufc][0-9]{1,2}")
#: Bytes of a cache line: arrays begin at multiples of it.
_ALIGN_BYTES = 64
_MAX_ARRAYS = 256
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
        if not _DTYPE.fullmatch(array.dtype.str) or len(layout) == _MAX_ARRAYS:
            raise ProcessorFailed(f"{name!r} is an array of {array.dtype}; only numbers and booleans can be sent")
        layout[name] = array.dtype.str, list(array.shape)
        if array.nbytes:
            gap = -size % _ALIGN_BYTES
            parts += [bytes(gap)] if gap else []
            parts.append(array.reshape(-1).view(np.uint8).data)
            size += gap + array.nbytes
    return Packed(plain, layout, parts, size)


@dataclass(frozen=True, slots=True)
class Views:
    """The places of a message's arrays: name, dtype, shape and first byte of each, -1 for one without bytes."""

    places: tuple[tuple[str, np.dtype[Any], tuple[int, ...], int], ...]
    size_bytes: int

    @classmethod
    def of(cls, layout: Any) -> Views:
        """Return the places of a layout; raise `ValueError` for an invalid one."""
        if not isinstance(layout, dict) or len(layout) > _MAX_ARRAYS:
            raise ValueError("the layout of arrays is invalid")
        places = []
        end = 0
        for name, row in layout.items():
            dtype, shape = _described(row)
            nbytes = dtype.itemsize * prod(shape)
            begin = end + -end % _ALIGN_BYTES if nbytes else -1
            end = begin + nbytes if nbytes else end
            places.append((name, dtype, shape, begin))
        return cls(tuple(places), end)

    def on(self, buffer: Buffer, size_bytes: int) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays, as views of a buffer; raise `ValueError` unless they fill it."""
        if self.size_bytes != size_bytes:
            size = "larger" if self.size_bytes > size_bytes else "smaller"
            raise ValueError(f"the arrays are {size} than their memory")
        arrays: dict[str, npt.NDArray[Any]] = {}
        for name, dtype, shape, begin in self.places:
            arrays[name] = np.empty(shape, dtype) if begin < 0 else np.ndarray(shape, dtype, buffer, begin)
        return arrays


def _described(row: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    match row:
        case [str(dtype), [*shape]] if _DTYPE.fullmatch(dtype) and len(shape) <= _MAX_DIMENSIONS:
            if all(type(length) is int and length >= 0 for length in shape):
                return np.dtype(dtype), tuple(shape)
    raise ValueError("the description of an array is invalid")
