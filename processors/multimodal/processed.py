"""Processed inputs of a chat: what the library's processor makes of it, from a tensor file that is checked first.

The description is made from examples: an axis that has one size in all of them is fixed, the others have any size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penstock.errors import InvalidInput
from penstock.processors.base import Array
from penstock.processors.tensors.description import Layout, described
from penstock.processors.tensors.reading import open_tensors, refuse_nan

#: Kind of numpy's dtypes -> names of the dtypes that are read for it.
_DTYPES = {
    "f": ("float32", "float16", "bfloat16", "float64"), "i": ("int64", "int32"), "u": ("uint8",), "b": ("bool",),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Described:
    """An input of a network, as its processor makes it."""

    #: One dtype, or several of different kinds.
    dtypes: tuple[np.dtype[np.generic], ...]
    #: Sizes of the axes, None for any; None where even their number differs.
    axes: tuple[int | None, ...] | None

    def __str__(self) -> str:
        dtypes = " or ".join(map(str, self.dtypes))
        if self.axes is None:
            return dtypes
        return f"{dtypes} ({', '.join('any' if axis is None else str(axis) for axis in self.axes)})"

    def fits(self, layout: Layout) -> bool:
        """Return True for a layout of a dtype that is read, with sizes above 0 that fit."""
        dtype, shape = layout
        if self.target(dtype) is None or 0 in shape:
            return False
        return self.axes is None or (
            len(shape) == len(self.axes)
            and all(axis in (None, size) for axis, size in zip(self.axes, shape, strict=True))
        )

    def target(self, dtype: str) -> np.dtype[np.generic] | None:
        """Return the dtype that an array of this dtype is converted to; None if it is not read."""
        return next((own for own in self.dtypes if dtype in _DTYPES.get(own.kind, ())), None)


def describe(examples: Sequence[Mapping[str, Array]]) -> dict[str, Described]:
    """Return the inputs that examples have, by name."""
    found: dict[str, Described] = {}
    for example in examples:
        for name, array in example.items():
            seen = found.get(name)
            if seen is None:
                found[name] = Described((array.dtype,), array.shape)
                continue
            more = () if seen.target(str(array.dtype)) else (array.dtype,)
            found[name] = Described((*seen.dtypes, *more), _common(seen.axes, array.shape))
    return found


def read_processed(path: Path, known: Mapping[str, Described], required: str | None) -> dict[str, Array]:
    """Return the inputs of a .safetensors file, in the processor's dtypes.

    Raises `InvalidInput` for an unknown name, a wrong dtype or shape, numbers that are not finite, and where `required`
    is missing; `MediaUnreadable` like `open_tensors`.
    """
    file = open_tensors(path)
    for name, layout in file.layouts.items():
        if name not in known:
            named = f"`{name}`" if name else "an array without a name, as .npy files have it"
            raise InvalidInput(f"The network takes no {named}; its inputs are {', '.join(sorted(known))}.")
        if not known[name].fits(layout):
            raise InvalidInput(f"The network takes `{name}` as {known[name]}, not {described(layout)}.")
    if required is not None and required not in file.layouts:
        raise InvalidInput(f"The file lacks `{required}`, {known[required]}.")
    arrays = file.load()
    for name, array in arrays.items():
        refuse_nan(name, array)
    return {name: array.astype(known[name].target(str(array.dtype)), copy=False) for name, array in arrays.items()}


def _common(axes: tuple[int | None, ...] | None, shape: tuple[int, ...]) -> tuple[int | None, ...] | None:
    if axes is None or len(axes) != len(shape):
        return None
    return tuple(axis if axis == size else None for axis, size in zip(axes, shape, strict=True))
