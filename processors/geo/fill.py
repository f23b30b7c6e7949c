"""Positive fill that nobody declared: looked for while a scene is read, and only said. No pixel is taken for it.

Numbers such as 65535 stand for no data in many files that do not say so. Saturated sensors give them too, but hardly
in all bands of a large patch at once: those are counted, block by block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

#: Highest numbers of data types, and what people put in their place.
_SUSPECTS: Final = (255, 9999, 32_767, 65_535, 99_999, 2**31 - 1, 2**32 - 1, 1e20, float(np.finfo(np.float32).max))
#: Of no smaller patch anything is said: the side of the squares that hold nothing else.
_BLOCK_PX = 16
#: Nor of fewer pixels of the scene, all patches together.
_LEAST_SHARE = 0.01

#: How many pixels of large patches have a suspect in all their bands.
Fill = Counter[float]


def count_fill(numbers: npt.NDArray[Any], valid: npt.NDArray[np.bool_]) -> Fill:
    """Count the pixels of (bands, rows, columns) in whole blocks of one suspect, where (rows, columns) is valid.

    Of a single band nothing is counted: there saturation and fill look the same.
    """
    if len(numbers) < 2:
        return Fill()
    found = ((number, _in_blocks(_everywhere(numbers, valid, number))) for number in _representable(numbers.dtype))
    return Fill({number: pixels for number, pixels in found if pixels})


def notes_of_fill(fill: Fill, pixels: int, bands: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each number that fills a large part of a scene of so many pixels."""
    for number, count in sorted(fill.items()):
        if count >= _LEAST_SHARE * pixels:
            yield (
                f"{100 * count / pixels:.3g} % of the scene are patches with the number {number:.9g} in all of "
                f"{', '.join(bands)}. They were taken for data. If that is fill which the file does not declare, give "
                f'"radiometry": {{"nodata": {number:.9g}}}.'
            )


def looks_like_fill(number: float) -> bool:
    """Whether people use the number for no data."""
    return number in _SUSPECTS


def _representable(dtype: np.dtype[Any]) -> Iterator[float]:
    highest = np.iinfo(dtype).max if np.issubdtype(dtype, np.integer) else np.finfo(dtype).max
    return (number for number in _SUSPECTS if number <= highest)


def _everywhere(numbers: npt.NDArray[Any], valid: npt.NDArray[np.bool_], number: float) -> npt.NDArray[np.bool_]:
    """Return where all bands have the number; most often the first band has it nowhere."""
    at: npt.NDArray[np.bool_] = valid & (numbers[0] == number)
    for band in numbers[1:]:
        if not at.any():
            break
        at &= band == number
    return at


def _in_blocks(at: npt.NDArray[np.bool_]) -> int:
    """Return how many pixels lie in whole blocks; what is left over at the lower and right edge is in none."""
    rows, columns = (side // _BLOCK_PX for side in at.shape)
    blocks = at[: rows * _BLOCK_PX, : columns * _BLOCK_PX].reshape(rows, _BLOCK_PX, columns, _BLOCK_PX)
    return int(blocks.all(axis=(1, 3)).sum()) * _BLOCK_PX**2
