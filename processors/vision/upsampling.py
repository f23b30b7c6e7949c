"""Bicubic upsampling of a network's small map to the image's size, a strip of rows at a time.

The result equals torch's `interpolate(mode="bicubic", align_corners=False)` except for rounding. transformers uses
that function, which needs the whole map in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

#: The parameter of torch's cubic kernel; Pillow's is -0.5.
_SHARPNESS = -0.75
_ROWS = 256


@dataclass(frozen=True, slots=True)
class Upsampled:
    """A map, float32 (h, w), upsampled to `size` (height, width)."""

    small: npt.NDArray[np.float32]
    size: tuple[int, int]

    def strips(self) -> Iterator[npt.NDArray[np.float32]]:
        """Yield the upsampled map in strips of rows, from the top."""
        rows, columns = (_taps(*sides) for sides in zip(self.size, self.small.shape, strict=True))
        for first in range(0, self.size[0], _ROWS):
            part = slice(first, first + _ROWS)
            narrow = _sum(self.small, rows[0][part], rows[1][part])
            yield np.ascontiguousarray(_sum(narrow.T, *columns).T)

    def whole(self) -> npt.NDArray[np.float32]:
        """Return the whole upsampled map."""
        return np.concatenate(list(self.strips()))


def _taps(wanted: int, given: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float32]]:
    """Return the four source indices of each target index, and their weights: (wanted, 4) both."""
    at = (np.arange(wanted) + 0.5) * (given / wanted) - 0.5
    first = np.floor(at)
    distance = np.abs((at - first)[:, None] - np.arange(-1, 3))
    a = _SHARPNESS
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    places = np.clip(first[:, None].astype(np.intp) + np.arange(-1, 3), 0, given - 1)
    return places, np.where(distance <= 1, near, far).astype(np.float32)


def _sum(
    values: npt.NDArray[np.float32], places: npt.NDArray[np.intp], weights: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Return the weighted sums of the rows of `values` at `places`."""
    total = np.zeros((len(places), values.shape[1]), dtype=np.float32)
    for tap in range(places.shape[1]):
        total += values[places[:, tap]] * weights[:, tap, None]
    return total
