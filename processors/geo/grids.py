"""Grids of pixels: which of several is the finest, and whether the pixels of the others nest in it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from affine import Affine

from penstock.errors import InvalidInput

#: How far corners of pixels may lie apart, in pixels of the finer grid: files write their origins with rounding.
_TOLERANCE_PX = 0.01

_REMEDY = "Bring all files onto one grid first, e.g. with `gdalwarp -te ... -tr ...`."


class Placed(Protocol):
    """A raster at a place; `transform` and `crs` are None where it does not say."""

    @property
    def height(self) -> int:
        """In pixels."""
        ...

    @property
    def width(self) -> int:
        """In pixels."""
        ...

    @property
    def crs(self) -> Any | None:
        """rasterio's CRS."""
        ...

    @property
    def transform(self) -> Any | None:
        """From pixels to the CRS, affine."""
        ...

    @property
    def gcps(self) -> tuple[Any, ...]:
        """Ground control points."""
        ...


@dataclass(frozen=True, slots=True)
class Factor:
    """How many rows and columns of the finer grid a pixel covers."""

    rows: int
    columns: int

    @property
    def same(self) -> bool:
        """Whether the grids are one."""
        return self.rows == self.columns == 1


def finest(grids: Sequence[Placed]) -> int:
    """Return the index of the grid with the smallest pixels, the first of equals.

    Grids without a georeference are compared by how many pixels they have.
    """

    def coarseness(index: int) -> tuple[float, int]:
        grid = grids[index]
        return abs(_affine(grid).determinant), -grid.height * grid.width

    return min(range(len(grids)), key=coarseness)


def nesting(target: Placed, other: Placed, *, called: str) -> Factor:
    """Return how the target's pixels nest in the other grid's.

    Raises `InvalidInput` with what differs: the CRS, the pixels (turned, no whole multiples, shifted) or the extent.
    `called` names the other file.
    """
    if target.crs != other.crs or _points(target) != _points(other):
        raise InvalidInput(f"{called} lies in {_crs(other)} and the finest file in {_crs(target)}. {_REMEDY}")
    ours, theirs = _affine(target), _affine(other)
    # From the other's pixels to the target's. A transform and its inverse may round to more than nothing.
    px = Affine.identity() if ours == theirs else ~ours @ theirs
    factor = Factor(round(px.e), round(px.a))
    if min(factor.rows, factor.columns) < 1 or not _nests(px, factor, other):
        raise InvalidInput(
            f"The pixels of {called} do not nest in those of the finest file: each covers {px.a:.4g} x {px.e:.4g} of "
            f"them, from column {px.c:.4g} and row {px.f:.4g} on. {_REMEDY}"
        )
    height, width = -(-target.height // factor.rows), -(-target.width // factor.columns)
    if (other.height, other.width) != (height, width):
        raise InvalidInput(
            f"{called} has another extent than the finest file: {other.width} x {other.height} pixels where "
            f"{width} x {height} would cover its {target.width} x {target.height}. Cut all files to one extent."
        )
    return factor


def _nests(px: Affine, factor: Factor, other: Placed) -> bool:
    corners = [(column, row) for column in (0, other.width) for row in (0, other.height)]
    found = [px @ corner for corner in corners]
    wanted = [(column * factor.columns, row * factor.rows) for column, row in corners]
    return all(
        abs(x - column) <= _TOLERANCE_PX and abs(y - row) <= _TOLERANCE_PX
        for (x, y), (column, row) in zip(found, wanted, strict=True)
    )


def _affine(grid: Placed) -> Affine:
    return Affine.identity() if grid.transform is None else grid.transform


def _points(grid: Placed) -> list[tuple[float, ...]]:
    return [(point.row, point.col, point.x, point.y) for point in grid.gcps]


def _crs(grid: Placed) -> str:
    if grid.gcps:
        return "its own ground control points"
    return "no CRS" if grid.crs is None else str(grid.crs)[:60]
