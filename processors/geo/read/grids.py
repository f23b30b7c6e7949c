"""Pixel grids: find the finest of several, and check that the pixels of the others nest in it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from affine import Affine

from penstock.errors import InvalidInput

#: Tolerance of pixel corners, in pixels of the finer grid, because files store rounded origins.
_TOLERANCE_PX = 0.01

_REMEDY = "Bring all files onto one grid first, e.g. with `gdalwarp -te ... -tr ...`."


class Placed(Protocol):
    """A raster and its georeference; `transform` and `crs` are None if the raster has none."""

    @property
    def height(self) -> int:
        """Height in pixels."""
        ...

    @property
    def width(self) -> int:
        """Width in pixels."""
        ...

    @property
    def crs(self) -> Any | None:
        """CRS, as a rasterio object."""
        ...

    @property
    def transform(self) -> Any | None:
        """Affine transform from pixels to the CRS."""
        ...

    @property
    def gcps(self) -> tuple[Any, ...]:
        """Ground control points."""
        ...


@dataclass(frozen=True, slots=True)
class Factor:
    """Number of rows and columns of the finer grid that one coarse pixel covers."""

    rows: int
    columns: int

    @property
    def same(self) -> bool:
        """True if both grids are the same."""
        return self.rows == self.columns == 1


def finest(grids: Sequence[Placed]) -> int:
    """Return the index of the grid with the smallest pixels; the first one if several are equal.

    Grids without a georeference are compared by their number of pixels.
    """

    def coarseness(index: int) -> tuple[float, int]:
        grid = grids[index]
        return abs(_affine(grid).determinant), -grid.height * grid.width

    return min(range(len(grids)), key=coarseness)


def nesting(target: Placed, other: Placed, *, label: str, target_label: str = "the finest file") -> Factor:
    """Return the number of target pixels in one pixel of the other grid.

    Raises `InvalidInput` if the CRS, the pixels (rotated, not a whole multiple, shifted) or the extent differ.
    `label` and `target_label` name the two in errors; the first begins a sentence.
    """
    if target.crs != other.crs or _points(target) != _points(other):
        raise InvalidInput(f"{label} has {_crs(other)}, but {target_label} has {_crs(target)}. {_REMEDY}")
    ours, theirs = _affine(target), _affine(other)
    # From the other grid's pixels to the target's. A transform times its inverse may differ from identity by rounding.
    px = Affine.identity() if ours == theirs else ~ours @ theirs
    factor = Factor(round(px.e), round(px.a))
    if min(factor.rows, factor.columns) < 1 or not _nests(px, factor, other):
        if is_shifted(target, other):
            raise InvalidInput(
                f"{label} has a different extent from {target_label}: its pixels are those of one grid, but start at "
                f"column {round(px.c)} and row {round(px.f)}. Crop all files to one extent."
            )
        raise InvalidInput(
            f"{label} has pixels that do not nest in those of {target_label}: each covers {px.a:.4g} x {px.e:.4g} of "
            f"them, starting at column {px.c:.4g} and row {px.f:.4g}. {_REMEDY}"
        )
    height, width = -(-target.height // factor.rows), -(-target.width // factor.columns)
    if (other.height, other.width) != (height, width):
        raise InvalidInput(
            f"{label} has a different extent from {target_label}: {other.width} x {other.height} pixels instead of "
            f"{width} x {height}. Crop all files to one extent."
        )
    return factor


def is_shifted(target: Placed, other: Placed) -> bool:
    """Return True if both rasters have the pixels of one grid with a transform, wherever they begin and end."""
    if target.transform is None or other.transform is None or target.crs != other.crs:
        return False
    px = ~target.transform @ other.transform
    return _nests(Affine.translation(-round(px.c), -round(px.f)) @ px, Factor(1, 1), other)


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
