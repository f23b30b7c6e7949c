"""Suspected undeclared nodata: found while a scene is read, refused or reported with the remedy, never masked.

Many files use numbers such as -9999, 0 or 65535 for nodata without declaring it. There are two kinds of evidence:

- Numbers that no sensor measures over an area, such as -9999 or the lowest float32, are refused. They are data only
  where the request declares another nodata number.
- Blocks of 8 x 8 pixels that hold one number in all bands are counted and reported as notes, because saturation,
  clipped values and true zeros look the same. Every number counts, so that fill which was scaled with the data is found
  too, such as -0.2 in Landsat reflectance. A single band is constant more often: there only common fill counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidInput, Issue
from penstock.processors.geo.read.radiometry import Radiometry

#: Numbers that are commonly used for nodata, and can be data too.
_KNOWN: Final = (
    *(0, -99, -999, -3000, -28_672),
    *(255, 9999, 32_767, 65_535, 99_999, 2**31 - 1, 2**32 - 1),
)
#: Numbers that are used for nodata, and that no sensor measures over an area.
_FILL: Final = (
    *(-9999, -99_999, -999_999, -32_767, -32_768, -(2**31) + 1, -(2**31)),
    *(1e20, -1e20, float(np.float32(1e20)), float(np.float32(-1e20))),
)
#: Magnitude from which any number is fill: the limits of float32 and float64, and 9.97e36, netCDF's default.
_FILL_MAGNITUDE: Final = 1e30
#: Least magnitude of a number of `_FILL`.
_LEAST_FILL: Final = 9999
#: Side in pixels of the square blocks that are counted.
_BLOCK_PX = 8
#: Largest share of a tile's pixels, and number of them, that may have a number of `_FILL` in all bands.
_MOST_FILL, _FEW_FILL = 0.001, 4
#: Smallest share of the scene's pixels that is reported.
_LEAST_SHARE = 0.01
#: A number that no pixel has in several bands at once but at a border, which may be thin, and its smallest share.
_BORDER, _BORDER_BANDS, _BORDER_SHARE = 65_535, 3, 0.001
#: Different numbers that are counted: at each date of a box, in a box, and in a scene. More are no fill but patterns.
_DATE_NUMBERS, _BOX_NUMBERS, _SCENE_NUMBERS = 8, 32, 256

Numbers = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]


class Suspect(NamedTuple):
    """A suspected nodata number and the date at which it occurs, from 1."""

    date: int
    number: float


#: Pixels in suspect blocks.
SuspectCounts = Counter[Suspect]


@dataclass(frozen=True, slots=True)
class SceneBands:
    """The bands of a scene in the network's order, as far as suspected nodata depends on them."""

    names: tuple[str, ...]
    #: Number of the date of each band, from 1; the bands of a date are neighbours.
    dates: tuple[int, ...]
    radiometry: Radiometry
    #: Name of the sensor of each of these groups of bands, if they are sensors and no dates.
    sensors: tuple[str, ...] = ()

    def at(self, date: int) -> slice:
        """Return the places of a date's bands."""
        first = self.dates.index(date)
        return slice(first, first + self.dates.count(date))

    def find_suspects(self, numbers: Numbers, valid: Mask) -> SuspectCounts:
        """Count the valid pixels in blocks that hold one number in all bands of a date.

        `numbers` are (bands, rows, columns), `valid` is (rows, columns). Raises `InvalidInput` for undeclared nodata
        that cannot be data.
        """
        found = SuspectCounts()
        for date in dict.fromkeys(self.dates):
            bands = numbers[self.at(date)]
            self._refuse_fill(bands, valid, date)
            found.update({Suspect(date, number): count for number, count in count_blocks(bands, valid).items()})
        return SuspectCounts(dict(found.most_common(_BOX_NUMBERS)))

    def _refuse_fill(self, bands: Numbers, valid: Mask, date: int) -> None:
        """Raise `InvalidInput` for a band in which more than a few pixels are fill.

        Integers may have such a number by chance in one band: there the pixels must be fill in all bands of the date,
        or fill a block.
        """
        first = self.at(date).start
        masks = {
            band: at
            for band, numbers in enumerate(bands)
            if self.radiometry.bands[first + band].nodata_source != "request"
            and (at := fill_mask(numbers, valid)) is not None
        }
        everywhere = np.logical_and.reduce(list(masks.values())) if 1 < len(masks) == len(bands) else None
        for band, at in masks.items():
            clear = at if bands.dtype.kind == "f" else everywhere
            many = clear is not None and clear.sum() > max(_FEW_FILL, _MOST_FILL * valid.sum())
            if many or in_blocks(at):
                raise self._refusal(bands[band][at], valid, date, first + band)

    def _refusal(self, fill: Numbers, valid: Mask, date: int, place: int) -> InvalidInput:
        found, counts = np.unique(fill, return_counts=True)
        number = in_words(found[counts.argmax()].item())
        dated = self._dated(date)
        return InvalidInput(
            f"{100 * counts.max() / valid.sum():.3g} % of a tile has the number {number} in band {self.names[place]}"
            f'{dated}, which looks like undeclared nodata: give "radiometry": {{"nodata": {number}}}.'
            f"{self._replaced(date)} To use {number} as data, give a nodata number that the scene does not have.",
            errors=[Issue("/input/radiometry/nodata", f"is needed: {number} looks like nodata")],
        )

    def notes(self, suspects: SuspectCounts, pixels: int) -> Iterator[str]:
        """Yield one sentence for each suspect number that covers a large share of a scene of `pixels` pixels."""
        for (date, number), count in sorted(suspects.items()):
            names = self.names[self.at(date)]
            border = number == _BORDER and len(names) >= _BORDER_BANDS
            if count >= (_BORDER_SHARE if border else _LEAST_SHARE) * pixels:
                dated = self._dated(date)
                yield (
                    f"At least {100 * count / pixels:.3g} % of the scene has the number {in_words(number)} in "
                    f"{'all of ' if len(names) > 1 else ''}{', '.join(names)}{dated}. These pixels were used as data. "
                    "If the number means nodata, which the file does not declare, give "
                    f'"radiometry": {{"nodata": {in_words(number)}}}.{self._replaced(date)}'
                )

    def _dated(self, date: int) -> str:
        if self.sensors:
            return f" of {self.sensors[date - 1]}"
        return f" at date {date}" if len(set(self.dates)) > 1 else ""

    def _replaced(self, date: int) -> str:
        """Return a sentence about the nodata number that is replaced; empty where there is none.

        A number that is not finite is never replaced: such pixels have no data in any case.
        """
        used = self.radiometry.bands[self.at(date)]
        declared = dict.fromkeys(
            (band.nodata, band.nodata_source) for band in used if band.nodata is not None and math.isfinite(band.nodata)
        )
        words = " and ".join(f"{in_words(nodata)} (source: {source})" for nodata, source in declared)
        return f" It replaces the nodata number {words}; a file with both needs one of them only." if words else ""


def add_suspects(total: SuspectCounts, more: SuspectCounts) -> None:
    """Add counts to a scene's counts. The rarest numbers are dropped, so that memory does not grow with the scene."""
    total.update(more)
    if len(total) > _SCENE_NUMBERS:
        for suspect, _ in total.most_common()[_SCENE_NUMBERS:]:
            del total[suspect]


def is_suspect(number: float) -> bool:
    """Return True for a number that is commonly used for nodata."""
    return number in _KNOWN or number in _FILL or abs(number) >= _FILL_MAGNITUDE


def fill_mask(band: Numbers, valid: Mask) -> Mask | None:
    """Return a mask of the valid pixels whose number is certainly fill; None if there are none, as usual."""
    if band.dtype.kind == "u":
        return None
    at: Mask = band <= -_LEAST_FILL
    if band.dtype.kind == "f":
        at |= band >= _LEAST_FILL
    at &= valid
    if not at.any():
        return None
    numbers = band[at].astype(np.float64)
    at[at] = np.isin(numbers, _FILL) | (np.abs(numbers) >= _FILL_MAGNITUDE)
    return at if at.any() else None


def count_blocks(bands: Numbers, valid: Mask) -> Counter[float]:
    """Count the valid pixels in blocks that hold one number in all `bands`, by the number.

    `bands` are (bands, rows, columns), `valid` is (rows, columns). A single band counts only with known numbers. Of
    several bands, pixels with the number `_BORDER` count also outside of blocks.
    """
    rows, columns = (side // _BLOCK_PX for side in valid.shape)
    first = bands[0, ::_BLOCK_PX, ::_BLOCK_PX][:rows, :columns]
    same, candidates = np.ones(first.shape, dtype=bool), []
    # The corners of a block tell nearly always that it is no candidate.
    for row, column in product((0, _BLOCK_PX - 1), repeat=2):
        corners = np.s_[row::_BLOCK_PX, column::_BLOCK_PX]
        same &= valid[corners][:rows, :columns]
        same &= (bands[:, *corners][:, :rows, :columns] == first).all(axis=0)
        if not same.any():
            break
    else:
        numbers, counts = np.unique(first[same], return_counts=True)
        often = [numbers[i] for i in np.argsort(-counts, kind="stable")]
        candidates = [number for number in often if len(bands) > 1 or is_suspect(number.item())][:_DATE_NUMBERS]
    found = {number.item(): in_blocks(_everywhere(bands, valid, number)) for number in candidates}
    if len(bands) >= _BORDER_BANDS:
        found[_BORDER] = int(_everywhere(bands, valid, _BORDER).sum())
    return Counter({number: pixels for number, pixels in found.items() if pixels})


def in_blocks(at: Mask) -> int:
    """Return the number of pixels in fully covered blocks; partial blocks at the lower and right edge do not count."""
    rows, columns = (side // _BLOCK_PX for side in at.shape)
    blocks = at[: rows * _BLOCK_PX, : columns * _BLOCK_PX].reshape(rows, _BLOCK_PX, columns, _BLOCK_PX)
    return int(blocks.all(axis=(1, 3)).sum()) * _BLOCK_PX**2


def in_words(number: float) -> str:
    """Return the shortest text that means exactly this number."""
    whole = abs(number) < _FILL_MAGNITUDE and number == int(number)  # int() fails for NaN and infinity
    return str(int(number)) if whole else repr(number)


def _everywhere(bands: Numbers, valid: Mask, number: Any) -> Mask:
    """Return a mask of the valid pixels that have the number in all bands."""
    at: Mask = bands[0] == number
    for band in bands[1:]:
        if not at.any():
            break
        at &= band == number
    return at & valid
