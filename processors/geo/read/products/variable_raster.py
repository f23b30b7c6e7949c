"""The pixels of a variable, read by windows as those of a raster file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from rasterio.errors import RasterioIOError

from penstock.processors.geo.read.products.variables import Variable, Variables, reason_of

#: Function that opens a file of variables.
OpenVariables = Callable[[Path], Variables]


@dataclass(frozen=True, slots=True)
class Axes:
    """The dimensions of a variable that is a raster; all others have the size 1."""

    rows: int
    columns: int
    #: Dimension of the bands; None for a single band.
    bands: int | None
    #: True if rows, or columns, are stored in the reverse order.
    flip_rows: bool
    flip_columns: bool


@dataclass(frozen=True, slots=True)
class VariablePart:
    """A variable as a part of a file, for `Scene.part`."""

    open_variables: OpenVariables
    path: str
    axes: Axes
    #: Type of the numbers: `_Unsigned` and the byte order of NetCDF make it another than that of the file.
    dtype: str

    def open(self, path: Path) -> VariableRaster:
        """Return the open variable. Raises `MediaUnreadable`."""
        variables = self.open_variables(path)
        return VariableRaster(variables, variables.each[self.path], self.axes, np.dtype(self.dtype))


class VariableRaster:
    """An open variable with the methods of a rasterio dataset by which pixels are read."""

    def __init__(self, variables: Variables, variable: Variable, axes: Axes, dtype: np.dtype[Any]) -> None:
        self._variables, self._variable, self._axes, self._dtype = variables, variable, axes, dtype

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._variables.close()

    def read(self, indexes: Sequence[int], window: Any) -> npt.NDArray[Any]:
        """Return the bands (from 1) of a window (rasterio) as (bands, rows, columns). Raises `RasterioIOError`."""
        axes, shape = self._axes, self._variable.shape
        key: list[slice | int] = [0] * len(shape)
        key[axes.rows] = _slice(window.row_off, window.height, shape[axes.rows], flip=axes.flip_rows)
        key[axes.columns] = _slice(window.col_off, window.width, shape[axes.columns], flip=axes.flip_columns)
        try:
            return np.stack([self._band(key, index) for index in indexes])
        except Exception as error:  # see `undamaged`
            raise RasterioIOError(reason_of(error) or "the variable is damaged") from None

    def _band(self, key: list[slice | int], index: int) -> npt.NDArray[Any]:
        axes = self._axes
        key = [index - 1 if at == axes.bands else each for at, each in enumerate(key)]
        numbers = np.asarray(self._variable.array[tuple(key)])
        if axes.rows > axes.columns:
            numbers = numbers.T
        numbers = numbers[:: -1 if axes.flip_rows else 1, :: -1 if axes.flip_columns else 1]
        if numbers.dtype.kind == "i" and self._dtype.kind == "u":
            return numbers.astype(numbers.dtype.newbyteorder("="), copy=False).view(self._dtype)
        return numbers.astype(self._dtype)


def _slice(start: float, size: float, length: int, *, flip: bool) -> slice:
    first, count = round(start), round(size)
    return slice(length - first - count, length - first) if flip else slice(first, first + count)
