"""Sample of a scene's numbers: small windows on a grid over the whole scene, so that the cost does not grow with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.processors.geo.read.row_stream import SceneRows
from penstock.processors.geo.read.suspected_nodata import Mask, count_blocks, fill_mask, is_suspect
from penstock.processors.geo.tiling.plan import Box

Numbers = npt.NDArray[np.float64]
#: Opens the scene to read some boxes of it.
Look = Callable[[Sequence[Box]], AbstractContextManager[SceneRows]]

#: Side of a window in pixels.
_WINDOW_PX = 64
#: Windows per side of the grid, by the height of the file's blocks: GDAL decodes whole blocks.
_GRIDS: Final = ((512, 5), (1024, 3))
#: Windows per side of the second grid, if the first one found almost no data: a narrow swath in a large mosaic.
_FINE_GRID = 12
#: Data in fewer pixels of the first grid lead to the second one.
_LEAST_PX = 1024
#: Maximum pixels of a sample; windows with more are thinned.
_MOST_PX = 24_000


def sample_numbers(look: Look, within: Box, *, dates: int, block_rows: int) -> Numbers:
    """Return float64 (bands, pixels) of at most 24,000 valid pixels of a box, without suspected undeclared fill.

    At most 25 windows are read, or 144 if those hold almost no data. A box that is hardly larger is read whole.
    """
    side = next((side for height, side in _GRIDS if block_rows <= height), 1)
    found = _read(look, within, side, dates)
    if found.shape[1] < _LEAST_PX and side > 1 and not _is_small(within, side):
        found = _read(look, within, _FINE_GRID, dates)
    return found[:, :: -(-found.shape[1] // _MOST_PX) or 1]


def windows(height: int, width: int, side: int) -> Iterator[Box]:
    """Yield `side` x `side` windows, row by row, centred in equal parts of the scene and at multiples of their size."""
    for top in _origins(height, side):
        for left in _origins(width, side):
            yield Box(top, left, min(height, top + _WINDOW_PX), min(width, left + _WINDOW_PX))


def _origins(length: int, side: int) -> list[int]:
    if length <= side * _WINDOW_PX:
        return list(range(0, length, _WINDOW_PX))
    middles = ((2 * i + 1) * length // (2 * side) for i in range(side))
    return sorted({middle // _WINDOW_PX * _WINDOW_PX for middle in middles})


def _is_small(box: Box, side: int) -> bool:
    return max(box.height, box.width) <= side * _WINDOW_PX


def _read(look: Look, within: Box, side: int, dates: int) -> Numbers:
    boxes = [box.moved(within.top, within.left) for box in windows(within.height, within.width, side)]
    with look(boxes) as rows:
        found = [np.empty((rows.count, 0))]
        for box in boxes:
            for _, numbers, valid in rows.look(box):
                found.append(numbers[:, valid & ~_fill(numbers, valid, dates)].astype(np.float64))
    return np.concatenate(found, axis=1)


def _fill(numbers: npt.NDArray[Any], valid: Mask, dates: int) -> Mask:
    """Return a mask of the pixels that look like undeclared nodata at any date."""
    fill = np.zeros(valid.shape, dtype=bool)
    for bands in np.split(numbers, dates):
        for at in (fill_mask(band, valid) for band in bands):
            if at is not None:
                fill |= at
        same = (bands == bands[0]).all(axis=0)
        constant = [*count_blocks(bands, valid), *filter(is_suspect, np.unique(bands[0][same]).tolist())]
        fill |= same & np.isin(bands[0], constant)
    return fill
