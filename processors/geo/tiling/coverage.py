"""Shares of pixels that a polygon covers, exact to rounding and row by row. Pure.

Every edge is cut where it crosses a border between pixels. A piece inside one pixel adds the area to its right: a
trapezoid in its own pixel, and its whole height in each pixel to the right. Edges that go down add it, edges that go up
subtract it (as in font rasterisers with exact coverage), so that the running sum of a row is the covered share.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import shapely

from penstock.processors.geo.tiling.plan import Box

Floats = npt.NDArray[np.float64]

#: Shares that differ from 0 or 1 by less are rounding.
_ROUNDING: Final = 1e-9
#: Pixels of a strip, at most, unless a row has more.
STRIP_PX = 2**20
#: Pieces of edges that are in memory at a time, about 250 bytes each; a single edge may have more.
MOST_PIECES = 500_000


@dataclass(frozen=True, slots=True, eq=False)
class Coverage:
    """One polygon in pixel coordinates: x are columns, y are rows."""

    #: Edges, float64 (n, 5): x and y of the upper end, x and y of the lower end, and 1 if the edge goes down, else -1.
    edges: Floats
    #: Smallest box that contains the polygon.
    box: Box

    def rows(self, top: int, bottom: int) -> Floats:
        """Return float64 (rows, columns of the box): the covered share of each pixel of some rows, from 0 to 1.

        Each row is computed by itself, so that its numbers do not depend on the other rows.
        """
        near = self.edges[(self.edges[:, 1] < bottom) & (self.edges[:, 3] > top)]
        pieces = np.cumsum(_pieces(near, top, bottom))
        if bottom - top > 1 and len(near) and pieces[-1] > MOST_PIECES:
            middle = (top + bottom) // 2
            return np.concatenate([self.rows(top, middle), self.rows(middle, bottom)])
        sums = np.zeros((bottom - top) * (self.box.width + 1))
        for edges in np.split(near, np.flatnonzero(np.diff(pieces // MOST_PIECES)) + 1):
            sums += self._sums(edges, top, bottom)
        covered: Floats = np.cumsum(sums.reshape(bottom - top, self.box.width + 1)[:, :-1], axis=1, dtype=np.float64)
        covered[covered < _ROUNDING] = 0
        covered[covered > 1 - _ROUNDING] = 1
        return covered

    def _sums(self, edges: Floats, top: int, bottom: int) -> Floats:
        """Return float64 (rows * (columns + 1)): what some edges add to each pixel, before the running sum of a row."""
        height, width = bottom - top, self.box.width
        x0, y0, x1, y1, sign = _cut(edges, 1, top, bottom).T
        row = np.floor((y0 + y1) / 2).astype(np.intp) - top
        mine = (row >= 0) & (row < height)
        flat = np.stack([x0, y0, x1, y1, sign], axis=1)[mine]
        along = np.where(flat[:, :1] <= flat[:, 2:3], flat[:, :4], flat[:, [2, 3, 0, 1]])  # from left to right
        pieces = _cut(np.column_stack([along, flat[:, 4], row[mine]]), 0, self.box.left, self.box.right)
        x0, y0, x1, y1, sign, at_row = pieces.T
        middle = (x0 + x1) / 2 - self.box.left
        column = np.clip(np.floor(middle).astype(np.intp), 0, width - 1)
        share, added = middle - column, np.abs(y1 - y0) * sign
        at = at_row.astype(np.intp) * (width + 1) + column
        sums = np.zeros(height * (width + 1))
        sums += np.bincount(at, added * (1 - share), len(sums))
        sums += np.bincount(at + 1, added * share, len(sums))
        return sums

    def strips(self, most_px: int = STRIP_PX) -> Iterator[tuple[Box, Floats]]:
        """Yield the box in strips, from top to bottom, each with the covered shares of its pixels."""
        step = max(1, most_px // self.box.width)
        for top in range(self.box.top, self.box.bottom, step):
            bottom = min(top + step, self.box.bottom)
            yield Box(top, self.box.left, bottom, self.box.right), self.rows(top, bottom)


def _pieces(edges: Floats, top: int, bottom: int) -> Floats:
    """Return about how many pieces each edge has in some rows: one for each row and column that it meets."""
    x0, y0, x1, y1, _ = edges.T
    rows = np.minimum(y1, bottom) - np.maximum(y0, top)
    found: Floats = 2 + rows + np.abs(x1 - x0) * rows / (y1 - y0)
    return found


def coverages(shape: Any) -> tuple[Coverage, ...]:
    """Return the polygons of a polygon or multipolygon, without those that are so thin that they cover nothing."""
    found = (_coverage(part) for part in shapely.get_parts(shapely.orient_polygons(shape, exterior_cw=True)))
    return tuple(each for each in found if each.box.height and each.box.width)


def _coverage(polygon: Any) -> Coverage:
    rings = [shapely.get_coordinates(ring) for ring in shapely.get_rings(polygon)]
    ends = np.concatenate([np.concatenate([ring[:-1], ring[1:]], axis=1) for ring in rings])
    ends = ends[ends[:, 1] != ends[:, 3]]  # level edges add nothing
    down = ends[:, 1] < ends[:, 3]
    upper_first = np.where(down[:, None], ends, ends[:, [2, 3, 0, 1]])
    left, top, right, bottom = shapely.bounds(polygon).tolist()
    box = Box(math.floor(top), math.floor(left), math.ceil(bottom), math.ceil(right))
    return Coverage(np.column_stack([upper_first, np.where(down, 1.0, -1.0)]), box)


def _cut(edges: Floats, axis: int, low: int, high: int) -> Floats:
    """Return the pieces of edges between whole numbers from `low` to `high` of an axis (0: x, 1: y).

    The first four columns of an edge are its ends, in the order of the axis; pieces keep the others.
    """
    start, end = edges[:, axis], edges[:, axis + 2]
    first = np.maximum(np.floor(start) + 1, low)
    counts = np.maximum(np.minimum(np.ceil(end) - 1, high) - first + 1, 0).astype(np.intp)
    owner = np.repeat(np.arange(len(edges)), counts + 1)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(counts + 1) - (counts + 1), counts + 1)
    pieces = edges[owner]
    cut = np.flatnonzero(number < counts[owner])  # pieces that end at a border, where the next piece begins
    of, border = owner[cut], (first[owner] + number)[cut]
    share = (border - start[of]) / (end[of] - start[of])
    for column in (0, 1):
        at = border if column == axis else edges[of, column] + share * (edges[of, column + 2] - edges[of, column])
        pieces[cut, column + 2] = at
        pieces[cut + 1, column] = at
    return pieces
