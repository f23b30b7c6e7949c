"""Places of scenes in a mosaic: moved by whole pixels, or reprojected.

A reprojected pixel has the numbers of the scene's pixel that contains its centre (nearest neighbour). Its place is
interpolated between nodes that are fixed on the mosaic's grid, so that it does not depend on the box that is read.
GDAL's `WarpedVRT` is not used, because the driver VRT opens other files and is switched off.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
from pyproj import CRS, Transformer
from pyproj.exceptions import ProjError

from penstock.errors import InvalidInput
from penstock.processors.geo.read.raster import Scene
from penstock.processors.geo.read.resample import Chunk
from penstock.processors.geo.read.row_stream import RowReader
from penstock.processors.geo.tiling.plan import Box

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

#: Distance of the nodes in pixels of the mosaic. Between nodes of 30 m pixels, UTM bends by less than 0.001 pixels.
_NODE_PX: Final = 16
#: A centre on the edge of two pixels belongs to the second, whatever the rounding of both scenes.
_EDGE_PX: Final = 1e-6
#: Rows and columns of the blocks in which a box is reprojected, and pixels of the scene that one block may need.
_BLOCK_PX: Final = 256
_MAX_SOURCE_PX: Final = 2**22
#: Points on each side of a scene whose places give its bounds.
_POINTS: Final = 65


class Placement(Protocol):
    """Place of one scene in a mosaic."""

    @property
    def box(self) -> Box:
        """The part of the mosaic that the scene may cover."""
        ...

    def source(self, box: Box) -> Box | None:
        """Return the scene's pixels that a box of the mosaic needs; None for a box beside the scene."""
        ...

    def place(self, rows: RowReader, count: int) -> RowReader:
        """Return a reader of the scene's `count` bands in the mosaic's pixels, for boxes inside `box`."""
        ...

    def moved(self, rows: int, columns: int, transform: Any) -> Placement:
        """Return the place on a grid whose pixels are the mosaic's, moved down and to the right.

        `transform` is that of the grid; None for one of ground control points, on which no scene is reprojected.
        """
        ...


@dataclass(frozen=True, slots=True)
class Shift:
    """A scene on the mosaic's grid; `box` is its place."""

    box: Box

    def source(self, box: Box) -> Box | None:
        """Return the scene's pixels of a box of the mosaic."""
        found = box.clipped(self.box)
        return None if found is None else found.within(self.box)

    def place(self, rows: RowReader, count: int) -> RowReader:  # noqa: ARG002  (the protocol names it)
        """Return a reader in the mosaic's pixels."""
        return ShiftedRows(rows, self.box)

    def moved(self, rows: int, columns: int, transform: Any) -> Shift:  # noqa: ARG002  (the protocol names it)
        """Return the place on another grid of the same pixels."""
        return Shift(self.box.moved(rows, columns))

    def coarser(self, rows: int, columns: int) -> Shift | None:
        """Return the place on a grid of coarser pixels; None if the scene does not begin at such a pixel."""
        if self.box.top % rows or self.box.left % columns:
            return None
        box = self.box
        return Shift(Box(box.top // rows, box.left // columns, -(-box.bottom // rows), -(-box.right // columns)))


class ShiftedRows:
    """Rows of a scene whose upper left pixel is elsewhere in the mosaic."""

    def __init__(self, rows: RowReader, box: Box) -> None:
        self._rows, self._box = rows, box
        self.dtype, self.chunk_rows = rows.dtype, rows.chunk_rows

    def read(self, box: Box) -> Iterator[Chunk]:
        """Yield a box of the mosaic inside the scene."""
        for top, numbers, valid in self._rows.read(box.within(self._box)):
            yield top + self._box.top, numbers, valid


@dataclass(frozen=True, slots=True, eq=False)
class Warp:
    """A scene of another grid."""

    #: The part of the mosaic that the scene may cover.
    box: Box
    #: Transformation from the mosaic's CRS to the scene's; None for the same CRS.
    transformer: Any | None
    #: Affine transforms from the mosaic's pixels to its CRS, and from the scene's CRS to its pixels.
    to_crs: Any
    to_pixels: Any
    #: The scene's size in pixels.
    height: int
    width: int

    def source(self, box: Box) -> Box | None:
        """Return the scene's pixels that a box of the mosaic needs."""
        inside = box.clipped(self.box)
        found = [each for part in _blocks(inside) if (each := _around(*self.at(part))) is not None] if inside else []
        if not found:
            return None
        return Box(
            min(each.top for each in found), min(each.left for each in found),
            max(each.bottom for each in found), max(each.right for each in found),
        )  # fmt: skip

    def moved(self, rows: int, columns: int, transform: Any) -> Warp:
        """Return the place on another grid of the same pixels, with the nodes of that grid."""
        return replace(self, box=self.box.moved(rows, columns), to_crs=transform)

    def place(self, rows: RowReader, count: int) -> RowReader:
        """Return a reader that reprojects."""
        return _WarpedRows(rows, self, count)

    def at(self, box: Box) -> tuple[Integers, Integers]:
        """Return the scene's row and column of each pixel of a box; both are -1 beside the scene."""
        rows, columns = np.arange(box.top, box.bottom), np.arange(box.left, box.right)
        down, across = _nodes(box.top, box.bottom), _nodes(box.left, box.right)
        x, y = _affine(self.to_crs, *np.meshgrid(across + 0.5, down + 0.5))
        if self.transformer is not None:
            x, y = self.transformer.transform(x, y)
        with np.errstate(invalid="ignore"):
            left, top = (_between(nodes, rows, columns) for nodes in _affine(self.to_pixels, x, y))
            inside = (left >= -_EDGE_PX) & (left < self.width - _EDGE_PX)
            inside &= (top >= -_EDGE_PX) & (top < self.height - _EDGE_PX)
        return _pixels(top, inside), _pixels(left, inside)


class _WarpedRows:
    """Rows of a scene in the pixels of another grid."""

    def __init__(self, rows: RowReader, warp: Warp, count: int) -> None:
        self._rows, self._warp, self._count = rows, warp, count
        self.dtype, self.chunk_rows = rows.dtype, _BLOCK_PX

    def read(self, box: Box) -> Iterator[Chunk]:
        """Yield a box of the mosaic, block by block."""
        for top in range(box.top - box.top % _BLOCK_PX, box.bottom, _BLOCK_PX):
            strip = Box(max(top, box.top), box.left, min(top + _BLOCK_PX, box.bottom), box.right)
            numbers = np.zeros((self._count, strip.height, strip.width), self.dtype)
            valid = np.zeros((strip.height, strip.width), bool)
            for part in _blocks(strip):
                self._fill(part, strip, numbers, valid)
            yield strip.top, numbers, valid

    def _fill(self, part: Box, strip: Box, numbers: npt.NDArray[Any], valid: npt.NDArray[np.bool_]) -> None:
        """Write the pixels of a part; one that needs too many of the scene's pixels is halved."""
        rows, columns = self._warp.at(part)
        source = _around(rows, columns)
        if source is None:
            return
        if source.height * source.width > _MAX_SOURCE_PX and part.height * part.width > 1:
            for half in _halves(part):
                self._fill(half, strip, numbers, valid)
            return
        held, known = whole(self._rows.read(source))
        at, inside = part.within(strip), rows >= 0
        places = rows[inside] - source.top, columns[inside] - source.left
        numbers[:, at.top : at.bottom, at.left : at.right][:, inside] = held[:, *places]
        valid[at.top : at.bottom, at.left : at.right][inside] = known[places]


def whole(chunks: Iterator[Chunk]) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Return the numbers and the validity of all chunks together."""
    found = list(chunks)
    return np.concatenate([numbers for _, numbers, _ in found], axis=1), np.concatenate([one for *_, one in found])


def warped(scene: Scene, crs: Any, transform: Any, height: int, width: int) -> Warp:
    """Return the place of a scene in a mosaic of another grid."""
    whole_box = Box(0, 0, height, width)
    found = bounds_in(scene, crs, transform)
    # Edges that bend may reach beyond the sampled bounds.
    around = Box(found.top - 1, found.left - 1, found.bottom + 1, found.right + 1)
    box = around.clipped(whole_box) or Box(0, 0, 1, 1)
    to_pixels = ~scene.transform if scene.transform is not None else None
    return Warp(box, _transformer(crs, scene.crs), transform, to_pixels, scene.height, scene.width)


def bounds_in(scene: Scene, crs: Any, transform: Any) -> Box:
    """Return the pixels of another grid that a scene covers. Raises `InvalidInput` if it has no place there."""
    top, left, bottom, right = extent_in(scene, crs, transform)
    return Box(
        math.floor(top + _EDGE_PX), math.floor(left + _EDGE_PX),
        math.ceil(bottom - _EDGE_PX), math.ceil(right - _EDGE_PX),
    )  # fmt: skip


def extent_in(scene: Scene, crs: Any, transform: Any) -> tuple[float, float, float, float]:
    """Return top, left, bottom and right of a scene in pixels of another grid, not rounded; see `bounds_in`."""
    side = np.linspace(0, 1, _POINTS)
    u, v = (each * size for each, size in zip(np.meshgrid(side, side), (scene.width, scene.height), strict=True))
    x, y = _affine(scene.transform, u, v)
    transformer = _transformer(scene.crs, crs)
    if transformer is not None:
        x, y = transformer.transform(x, y)
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise InvalidInput(f"The scene has no place in the CRS {crs} of the grid.")
    left, top = _affine(~transform, x, y)
    return float(top.min()), float(left.min()), float(top.max()), float(left.max())


def _transformer(source: Any, target: Any) -> Any | None:
    ours, theirs = CRS.from_wkt(source.to_wkt()), CRS.from_wkt(target.to_wkt())
    if ours.equals(theirs, ignore_axis_order=True):
        return None
    try:
        return Transformer.from_crs(ours, theirs, always_xy=True)
    except ProjError as error:
        raise InvalidInput(f"There is no transformation from {ours.name} to {theirs.name}.") from error


def _affine(transform: Any, x: Any, y: Any) -> tuple[Floats, Floats]:
    a, b, c, d, e, f = tuple(transform)[:6]
    return a * x + b * y + c, d * x + e * y + f


def _pixels(at: Floats, inside: npt.NDArray[np.bool_]) -> Integers:
    return np.asarray(np.floor(np.where(inside, at + _EDGE_PX, -1)).astype(np.int64))


def _nodes(start: int, stop: int) -> Integers:
    """Return the nodes around pixels `start` to `stop` (exclusive), at multiples of their distance."""
    first, last = start // _NODE_PX, (stop - 1) // _NODE_PX + 1
    return np.arange(first, last + 1) * _NODE_PX


def _between(nodes: Floats, rows: Integers, columns: Integers) -> Floats:
    """Return the values at pixels, interpolated between the nodes around them."""
    i, j = rows // _NODE_PX - rows[0] // _NODE_PX, columns // _NODE_PX - columns[0] // _NODE_PX
    down, across = (rows % _NODE_PX / _NODE_PX)[:, None], columns % _NODE_PX / _NODE_PX
    between = nodes[i] * (1 - down) + nodes[i + 1] * down
    return np.asarray(between[:, j] * (1 - across) + between[:, j + 1] * across)


def _blocks(box: Box) -> Iterator[Box]:
    """Yield the blocks that cover a box."""
    for top in range(box.top, box.bottom, _BLOCK_PX):
        for left in range(box.left, box.right, _BLOCK_PX):
            block = Box(top, left, top + _BLOCK_PX, left + _BLOCK_PX).clipped(box)
            if block is not None:
                yield block


def _halves(box: Box) -> tuple[Box, Box]:
    if box.height >= box.width:
        middle = (box.top + box.bottom) // 2
        return Box(box.top, box.left, middle, box.right), Box(middle, box.left, box.bottom, box.right)
    middle = (box.left + box.right) // 2
    return Box(box.top, box.left, box.bottom, middle), Box(box.top, middle, box.bottom, box.right)


def _around(rows: Integers, columns: Integers) -> Box | None:
    """Return the smallest box around pixels, without those at -1."""
    inside = rows >= 0
    if not inside.any():
        return None
    some, others = rows[inside], columns[inside]
    return Box(int(some.min()), int(others.min()), int(some.max()) + 1, int(others.max()) + 1)
