"""Upsampling to a finer grid whose pixels nest: values bilinear, validity by nearest neighbour.

The centre of fine pixel i is at (i + 0.5) / factor - 0.5 in coordinates of coarse pixel centres. A value is the mean of
the valid pixels among the four nearest coarse pixels, with normalised bilinear weights, so nodata never affects values.
A fine pixel is valid if the coarse pixel that contains it is valid, so the valid area does not change. Each value is
independent of how rows are split into chunks: there are no seams between chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.processors.geo.read.grids import Factor
from penstock.processors.geo.tiling.plan import Box

#: Some rows of a box: (first row, numbers (bands, rows, columns), valid (rows, columns)).
Chunk = tuple[int, npt.NDArray[Any], npt.NDArray[np.bool_]]


@dataclass(frozen=True, slots=True)
class Taps:
    """Interpolation along one axis: two coarse pixels per fine pixel, weight of the second, containing pixel."""

    lower: npt.NDArray[np.intp]
    upper: npt.NDArray[np.intp]
    weight: npt.NDArray[np.float64]
    inside: npt.NDArray[np.intp]

    def minus(self, first: int) -> Taps:
        """Return the taps with indices relative to coarse pixel `first`."""
        return Taps(self.lower - first, self.upper - first, self.weight, self.inside - first)


def taps(start: int, stop: int, factor: int, size: int) -> Taps:
    """Return the taps of fine pixels `start` to `stop` (exclusive) on an axis of `size` coarse pixels."""
    fine = np.arange(start, stop)
    at = (2 * fine + 1 - factor) / (2 * factor)
    lower = np.floor(at).astype(np.intp)
    weight = at - lower
    weight[(lower < 0) | (lower >= size - 1)] = 0.0  # beyond the outermost centres: constant
    lower = lower.clip(0, size - 1)
    return Taps(lower, np.where(weight > 0, lower + 1, lower), weight, (fine // factor).astype(np.intp))


def coarse_box(fine: Box, factor: Factor, height: int, width: int) -> Box:
    """Return the coarse pixels needed for a box of the fine grid, in a raster of `height` x `width` coarse pixels."""
    rows = taps(fine.top, fine.bottom, factor.rows, height)
    columns = taps(fine.left, fine.right, factor.columns, width)
    top, bottom = min(rows.lower[0], rows.inside[0]), max(rows.upper[-1], rows.inside[-1]) + 1
    left, right = min(columns.lower[0], columns.inside[0]), max(columns.upper[-1], columns.inside[-1]) + 1
    return Box(int(top), int(left), int(bottom), int(right))


def bilinear(
    numbers: npt.NDArray[Any], valid: npt.NDArray[np.bool_], rows: Taps, columns: Taps
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Return floats (bands, fine rows, fine columns), 0 at invalid pixels, and valid (fine rows, fine columns)."""
    dtype = np.result_type(numbers.dtype, np.float32)
    known = np.where(valid, numbers, 0).astype(dtype)
    inside = valid[rows.inside][:, columns.inside]
    values = _between(known, rows, columns)
    if valid.all():
        return values, inside
    corners = valid[rows.lower] & valid[rows.upper]
    partial = ~(corners[:, columns.lower] & corners[:, columns.upper]) & inside
    weights = _between(valid[None].astype(dtype), rows, columns)[0]
    np.divide(values, weights, out=values, where=partial)
    values[:, ~inside] = 0
    return values, inside


def upsample(
    chunks: Iterator[Chunk], box: Box, factor: Factor, height: int, width: int, *, chunk_rows: int
) -> Iterator[Chunk]:
    """Yield a box of the fine grid in chunks of at most `chunk_rows` rows, from the chunks of its `coarse_box`.

    `height` and `width` are the size of the whole coarse raster.
    """
    source = coarse_box(box, factor, height, width)
    columns = taps(box.left, box.right, factor.columns, width).minus(source.left)
    held: tuple[npt.NDArray[Any], npt.NDArray[np.bool_]] | None = None
    top, first = box.top, source.top
    for _, numbers, valid in chunks:
        if held is not None:
            numbers, valid = np.concatenate([held[0], numbers], axis=1), np.concatenate([held[1], valid])
        end = first + valid.shape[0]
        # Fine rows below the centre of the last available coarse row also need the next coarse row.
        ready = box.bottom if end >= source.bottom else min(box.bottom, factor.rows * (2 * end - 1) // 2)
        while top < ready:
            bottom = min(ready, top + chunk_rows)
            need = coarse_box(Box(top, box.left, bottom, box.right), factor, height, width)
            rows, part = taps(top, bottom, factor.rows, height).minus(need.top), slice(need.top - first, None)
            yield top, *bilinear(numbers[:, part][:, : need.height], valid[part][: need.height], rows, columns)
            top = bottom
        held = numbers[:, -1:].copy(), valid[-1:].copy()
        first = end - 1


def _between(known: npt.NDArray[Any], rows: Taps, columns: Taps) -> npt.NDArray[Any]:
    down = rows.weight.astype(known.dtype)[:, None]
    across = columns.weight.astype(known.dtype)
    between = known[:, rows.lower] * (1 - down) + known[:, rows.upper] * down
    return np.asarray(between[:, :, columns.lower] * (1 - across) + between[:, :, columns.upper] * across)
