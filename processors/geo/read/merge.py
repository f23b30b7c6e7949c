"""Merge of a mosaic's scenes, strip by strip: the first scene with data at each pixel, or the median of all.

Memory holds some rows of the scenes that meet a strip, whatever the height of the mosaic. Each scene's rows are read
once, from top to bottom.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from penstock.processors.geo.read.masks import ClearRows
from penstock.processors.geo.read.placement import whole
from penstock.processors.geo.read.resample import Chunk
from penstock.processors.geo.read.row_stream import Cursor, RowReader
from penstock.processors.geo.tiling.plan import Box

Merge = Literal["first", "median"]

#: Rows of a merged chunk, at most, and bytes of all scenes' numbers in it.
_CHUNK_ROWS: Final = 128
_CHUNK_BYTES: Final = 32 * 2**20
#: Ranks of a scene's pixel: no data, data behind a cloud, data.
_EMPTY, _HIDDEN, _CLEAR = 0, 1, 2


@dataclass(frozen=True, slots=True)
class MosaicPart:
    """Bands of one scene of a mosaic, in the mosaic's pixels."""

    rows: RowReader
    #: The part of the mosaic that the scene may cover.
    box: Box
    #: The provider's mask; None for a scene without.
    clear: ClearRows | None = None


@dataclass(frozen=True, slots=True)
class _Piece:
    """The pixels of one scene in a strip."""

    #: Place in the strip.
    at: tuple[slice, slice]
    numbers: npt.NDArray[Any]
    #: uint8 (rows, columns): rank of each pixel.
    ranks: npt.NDArray[np.uint8]
    #: True for the pixels that the mask leaves.
    clear: npt.NDArray[np.bool_]


class MergedRows:
    """Reader of the bands of all scenes of a mosaic."""

    def __init__(self, parts: Sequence[MosaicPart], count: int, merge: Merge) -> None:
        self._parts, self._count, self._merge = tuple(parts), count, merge
        self.dtype = merged_dtype([part.rows.dtype for part in parts], merge)
        self.chunk_rows = _CHUNK_ROWS

    def read(self, box: Box) -> Iterator[Chunk]:
        """Yield a box in chunks. Scenes beside it are not read."""
        meeting = [(part, inside) for part in self._parts if (inside := part.box.clipped(box)) is not None]
        cursors = [(part, inside, Cursor(part.rows.read(inside), inside.top)) for part, inside in meeting]
        row_bytes = max(1, len(meeting)) * self._count * self.dtype.itemsize * box.width
        step = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // row_bytes))
        for top in range(box.top, box.bottom, step):
            strip = Box(top, box.left, min(box.bottom, top + step), box.right)
            pieces = [
                _piece(part, inside_strip, strip, cursor)
                for part, inside, cursor in cursors
                if (inside_strip := inside.clipped(strip)) is not None
            ]
            merged = _first if self._merge == "first" else _median
            numbers = np.zeros((self._count, strip.height, strip.width), self.dtype)
            yield top, numbers, merged(numbers, pieces) if pieces else np.zeros(numbers.shape[1:], bool)


def merged_dtype(dtypes: Sequence[np.dtype[Any]], merge: Merge) -> np.dtype[Any]:
    """Return the data type of merged numbers: floating point for medians."""
    return np.result_type(*dtypes, *([np.float32] if merge == "median" else []))


def _piece(part: MosaicPart, box: Box, strip: Box, cursor: Cursor) -> _Piece:
    """Read the next rows of a scene, down to the end of a box."""
    numbers, valid = whole(cursor.until(box.bottom))
    clear = valid if part.clear is None else part.clear.read(box)
    ranks = np.where(valid, np.where(clear, _CLEAR, _HIDDEN), _EMPTY).astype(np.uint8)
    at = box.within(strip)
    return _Piece((slice(at.top, at.bottom), slice(at.left, at.right)), numbers, ranks, clear)


def _first(numbers: npt.NDArray[Any], pieces: Sequence[_Piece]) -> npt.NDArray[np.bool_]:
    """Write the numbers of the first scene of the best rank at each pixel; return the validity."""
    best = np.zeros(numbers.shape[1:], np.uint8)
    for piece in pieces:
        better = piece.ranks > best[piece.at]
        for band, given in zip(numbers, piece.numbers, strict=True):
            np.copyto(band[piece.at], given, where=better, casting="unsafe")
        np.maximum(best[piece.at], piece.ranks, out=best[piece.at])
    return _valid(best, pieces)


def _median(numbers: npt.NDArray[Any], pieces: Sequence[_Piece]) -> npt.NDArray[np.bool_]:
    """Write the medians of the numbers of the best rank at each pixel; return the validity."""
    best = np.zeros(numbers.shape[1:], np.uint8)
    for piece in pieces:
        np.maximum(best[piece.at], piece.ranks, out=best[piece.at])
    used = np.zeros((len(pieces), *best.shape), bool)
    for among, piece in zip(used, pieces, strict=True):
        among[piece.at] = (piece.ranks == best[piece.at]) & (piece.ranks > _EMPTY)
    count = used.sum(axis=0)
    lower, upper = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, max(0, len(pieces) - 1))
    stack = np.empty(used.shape, numbers.dtype)
    for at, band in enumerate(numbers):
        stack[:] = np.inf
        for among, level, piece in zip(used, stack, pieces, strict=True):
            np.copyto(level[piece.at], piece.numbers[at], where=among[piece.at], casting="unsafe")
        stack.sort(axis=0)
        low, high = (np.take_along_axis(stack, index[None], axis=0)[0] for index in (lower, upper))
        with np.errstate(invalid="ignore"):
            band[:] = np.where(count > 0, low + (high - low) / 2, 0)
    return _valid(best, pieces)


def _valid(best: npt.NDArray[np.uint8], pieces: Sequence[_Piece]) -> npt.NDArray[np.bool_]:
    """Return the validity of merged pixels.

    A pixel that some scene's mask leaves, although that scene has no data there, is not filled with a cloud: the
    results would show the cloud as an observation.
    """
    left = np.zeros(best.shape, bool)
    for piece in pieces:
        left[piece.at] |= piece.clear
    return np.asarray((best == _CLEAR) | ((best == _HIDDEN) & ~left))
