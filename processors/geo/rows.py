"""A scene's rows as a stream: from all its files, on one grid, each source row decoded once, read ahead of the engine.

file -> chunks of whole blocks -> (coarser: onto the grid) -┐
file -> chunks of whole blocks ------------------------------┴-> merged -> read ahead by a thread -> strips
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from penstock.processors.geo.grids import Factor
from penstock.processors.geo.plan import Box
from penstock.processors.geo.resample import Chunk, coarse_box, upsample

#: Rows handed on at a time where several files, or finer grids, make them.
_CHUNK_ROWS = 128
#: How much is decoded before it is asked for: about half a strip of a Sentinel-2 scene.
_AHEAD_BYTES = 64 * 2**20


class ReadsRows(Protocol):
    """What streams a box of a raster from top to bottom: `FileRows`."""

    dtype: np.dtype[Any]
    #: How many rows most of its chunks have.
    chunk_rows: int

    def read(self, box: Box) -> Iterator[Chunk]:
        """Yield the box in chunks of whole rows."""
        ...


@dataclass(frozen=True, slots=True)
class Layer:
    """Some of the scene's bands, from one file."""

    rows: ReadsRows
    #: Which of the scene's bands they are, from 0.
    places: tuple[int, ...]
    #: Of the file's whole grid, in its own pixels.
    height: int
    width: int
    #: How many of the scene's pixels one of the file's covers.
    factor: Factor

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its numbers on the scene's grid."""
        return layer_dtype(self.rows.dtype, self.factor)

    def read(self, box: Box) -> Iterator[Chunk]:
        """Yield a box of the scene's grid."""
        if self.factor.same:
            return self.rows.read(box)
        source = self.rows.read(coarse_box(box, self.factor, self.height, self.width))
        return upsample(source, box, self.factor, self.height, self.width, chunk_rows=_CHUNK_ROWS)


class Rows:
    """The pixels of a scene's bands. One thread at a time may use it; `close` it when done.

    Numbers are of `dtype`, which holds those of every file exactly.
    """

    def __init__(self, layers: Sequence[Layer], height: int, width: int) -> None:
        self._layers = tuple(layers)
        self.height, self.width = height, width
        self.count = sum(len(layer.places) for layer in layers)
        self.dtype = stream_dtype([layer.dtype for layer in layers])
        #: The one layer that has all the bands in their order: nothing is to be merged.
        self._alone = layers[0] if [layer.places for layer in layers] == [tuple(range(self.count))] else None
        self._stream: Generator[Chunk, None, None] | None = None
        self._cursor = Cursor(iter(()), 0)
        self._sides = 0, 0

    def read(self, box: Box) -> Iterator[Chunk]:
        """Yield (first row, numbers (bands, rows, columns), valid (rows, columns)) from top to bottom.

        A pixel is valid where all the bands hold data. Take all of a box before reading the next. Boxes that go on
        where the last one ended, in the same columns, go on with its stream, which is already reading ahead; any other
        box starts a new one.
        """
        if (box.left, box.right) != self._sides or box.top != self._cursor.at:
            self.close()
            rest = Box(box.top, box.left, self.height, box.right)
            self._stream = read_ahead(self._chunks(rest), depth=self._depth(rest))
            self._cursor, self._sides = Cursor(self._stream, box.top), (box.left, box.right)
        return self._cursor.until(box.bottom)

    def close(self) -> None:
        """Stop reading ahead; when it returns, nothing reads any more."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _chunks(self, box: Box) -> Iterator[Chunk]:
        return self._merged(box) if self._alone is None else self._alone.read(box)

    def _merged(self, box: Box) -> Iterator[Chunk]:
        cursors = [(Cursor(layer.read(box), box.top), list(layer.places)) for layer in self._layers]
        for top in range(box.top, box.bottom, _CHUNK_ROWS):
            bottom = min(box.bottom, top + _CHUNK_ROWS)
            numbers = np.empty((self.count, bottom - top, box.width), dtype=self.dtype)
            valid = np.ones((bottom - top, box.width), dtype=bool)
            for cursor, places in cursors:
                for at, some, known in cursor.until(bottom):
                    rows = slice(at - top, at - top + known.shape[0])
                    numbers[places, rows] = some
                    valid[rows] &= known
            yield top, numbers, valid

    def _depth(self, box: Box) -> int:
        """Return how many chunks to read ahead: at least one, else as many as the budget allows and the box has."""
        alone = self._alone
        rows = alone.rows.chunk_rows if alone is not None and alone.factor.same else _CHUNK_ROWS
        chunk_bytes = rows * box.width * (self.count * self.dtype.itemsize + 1)
        return min(max(1, _AHEAD_BYTES // chunk_bytes), -(-box.height // rows) + 1)


def layer_dtype(dtype: np.dtype[Any], factor: Factor) -> np.dtype[Any]:
    """Return what a file's numbers become on a grid: floating point where they are interpolated."""
    return dtype if factor.same else np.result_type(dtype, np.float32)


def stream_dtype(dtypes: Sequence[np.dtype[Any]]) -> np.dtype[Any]:
    """Return the smallest type that holds the numbers of all."""
    return np.result_type(*dtypes)


class Cursor:
    """Takes rows off a stream of chunks, as many as are wanted, whatever the chunks' heights."""

    def __init__(self, chunks: Iterator[Chunk], top: int) -> None:
        self._chunks = chunks
        self._left: Chunk | None = None
        #: The row that comes next.
        self.at = top

    def until(self, bottom: int) -> Iterator[Chunk]:
        """Yield what comes before row `bottom`, as views of the chunks."""
        while self.at < bottom:
            top, numbers, valid = self._left or next(self._chunks)
            rows = bottom - top
            self._left = (bottom, numbers[:, rows:], valid[rows:]) if valid.shape[0] > rows else None
            self.at = min(bottom, top + valid.shape[0])
            yield top, numbers[:, :rows], valid[:rows]


def read_ahead(chunks: Iterator[Chunk], *, depth: int) -> Generator[Chunk, None, None]:
    """Yield the chunks while a thread makes the next ones: never more than `depth` that were not asked for.

    What the chunks' iterator raises is raised where its chunk would have come. Closing waits for the one in the making.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as pool:
        try:
            ahead = deque(pool.submit(next, chunks, None) for _ in range(depth))
            while (chunk := ahead.popleft().result()) is not None:
                ahead.append(pool.submit(next, chunks, None))
                yield chunk
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
