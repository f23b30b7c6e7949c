"""Stream of a scene's rows, merged from all its files on one grid, decoded once and ahead of the engine.

file -> chunks of whole blocks -> (coarser: upsampled) ------┐
file -> chunks of whole blocks ------------------------------┴-> merged -> read ahead by a thread -> strips
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from penstock.processors.geo.read.grids import Factor
from penstock.processors.geo.read.resample import Chunk, coarse_box, upsample
from penstock.processors.geo.tiling.plan import Box

T = TypeVar("T")

#: Rows per chunk of merged or upsampled files.
_CHUNK_ROWS = 128
#: Bytes decoded ahead: about half a strip of a Sentinel-2 scene.
_AHEAD_BYTES = 64 * 2**20


class RowReader(Protocol):
    """Reader that streams a box of a raster from top to bottom; `FileRows` is one."""

    dtype: np.dtype[Any]
    #: Usual number of rows in a chunk.
    chunk_rows: int

    def read(self, box: Box) -> Iterator[Chunk]:
        """Yield the box in chunks of whole rows."""
        ...


@dataclass(frozen=True, slots=True)
class FileLayer:
    """Bands of the scene that come from one file."""

    rows: RowReader
    #: Indices of the bands in the scene, from 0.
    places: tuple[int, ...]
    #: Size of the file's grid in its own pixels.
    height: int
    width: int
    #: Scene pixels per file pixel.
    factor: Factor

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the bands on the scene's grid."""
        return layer_dtype(self.rows.dtype, self.factor)

    def read(self, box: Box) -> Iterator[Chunk]:
        """Yield a box of the scene's grid."""
        if self.factor.same:
            return self.rows.read(box)
        source = self.rows.read(coarse_box(box, self.factor, self.height, self.width))
        return upsample(source, box, self.factor, self.height, self.width, chunk_rows=_CHUNK_ROWS)


class SceneRows:
    """Stream of the pixels of all bands of a scene. Not thread-safe; call `close` at the end.

    `dtype` represents the numbers of every file exactly.
    """

    def __init__(self, layers: Sequence[FileLayer], height: int, width: int, *, bottom: int | None = None) -> None:
        self._layers = tuple(layers)
        self.height, self.width = height, width
        #: Rows from here on are not read ahead; they may be missing in the files.
        self._bottom = height if bottom is None else bottom
        self.count = sum(len(layer.places) for layer in layers)
        self.dtype = stream_dtype([layer.dtype for layer in layers])
        #: The only layer, if it has all bands in order: no merging needed.
        self._alone = layers[0] if [layer.places for layer in layers] == [tuple(range(self.count))] else None
        self._stream: Generator[Chunk, None, None] | None = None
        self._cursor = Cursor(iter(()), 0)
        self._sides = 0, 0

    def read(self, box: Box) -> Iterator[Chunk]:
        """Yield (first row, numbers (bands, rows, columns), valid (rows, columns)) from top to bottom.

        A pixel is valid if all bands hold data. Consume one box completely before reading the next. A box that
        continues below the last one, in the same columns, uses the same read-ahead stream; any other box starts a new
        stream.
        """
        if (box.left, box.right) != self._sides or box.top != self._cursor.at:
            self.close()
            rest = Box(box.top, box.left, max(box.bottom, self._bottom), box.right)
            self._stream = read_ahead(self._chunks(rest), depth=self._depth(rest))
            self._cursor, self._sides = Cursor(self._stream, box.top), (box.left, box.right)
        return self._cursor.until(box.bottom)

    def look(self, box: Box) -> Iterator[Chunk]:
        """Yield one box as `read` does, but without reading ahead: for small boxes far apart."""
        return self._chunks(box)

    def close(self) -> None:
        """Stop reading ahead and wait until the reading thread has ended."""
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
        """Return the number of chunks to read ahead: at least one, at most the budget and the chunks of the box."""
        alone = self._alone
        rows = alone.rows.chunk_rows if alone is not None and alone.factor.same else _CHUNK_ROWS
        chunk_bytes = rows * box.width * (self.count * self.dtype.itemsize + 1)
        return min(max(1, _AHEAD_BYTES // chunk_bytes), -(-box.height // rows) + 1)


def layer_dtype(dtype: np.dtype[Any], factor: Factor) -> np.dtype[Any]:
    """Return the data type on the scene's grid: floating point if the file is interpolated."""
    return dtype if factor.same else np.result_type(dtype, np.float32)


def stream_dtype(dtypes: Sequence[np.dtype[Any]]) -> np.dtype[Any]:
    """Return the smallest data type that represents all given types."""
    return np.result_type(*dtypes)


class Cursor:
    """Reader of any number of rows from a stream of chunks of any height."""

    def __init__(self, chunks: Iterator[Chunk], top: int) -> None:
        self._chunks = chunks
        self._left: Chunk | None = None
        #: Next row.
        self.at = top

    def until(self, bottom: int) -> Iterator[Chunk]:
        """Yield all rows before `bottom`, as views of the chunks."""
        while self.at < bottom:
            top, numbers, valid = self._left or next(self._chunks)
            rows = bottom - top
            self._left = (bottom, numbers[:, rows:], valid[rows:]) if valid.shape[0] > rows else None
            self.at = min(bottom, top + valid.shape[0])
            yield top, numbers[:, :rows], valid[:rows]


def read_ahead(chunks: Iterator[T], *, depth: int) -> Generator[T, None, None]:
    """Yield the chunks while a thread prepares at most `depth` next chunks.

    An error of the iterator is raised at the position of its chunk. Closing waits for the chunk in progress.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as pool:
        try:
            ahead = deque(pool.submit(next, chunks, None) for _ in range(depth))
            while (chunk := ahead.popleft().result()) is not None:
                ahead.append(pool.submit(next, chunks, None))
                yield chunk
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
