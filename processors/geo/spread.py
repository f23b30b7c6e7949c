"""How the numbers of a large float raster are spread: exact, in two readings of it, in memory that does not grow."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.processors.geo.gdal import rasterio, without_georeference

#: Of the values, in percent.
PERCENTILES = (1, 5, 25, 50, 75, 95, 99)
_HALF = 2**16

Values = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Spread:
    """The statistics of the values that are not NaN; those without meaning (of no value at all) are None."""

    count: int
    minimum: float | None
    maximum: float | None
    mean: float | None
    #: Of the population.
    deviation: float | None
    #: By percent, the nearest rank: each is one of the values.
    percentiles: dict[int, float]

    def to_json(self) -> dict[str, Any]:
        """Return what the statistics say."""
        return {
            "count": self.count,
            "min": self.minimum,
            "max": self.maximum,
            "mean": self.mean,
            "std": self.deviation,
            "percentiles": {str(percent): value for percent, value in self.percentiles.items()},
        }


def read_spread(raster: Path, band: int) -> Spread:
    """Return the spread of a band of a float32 raster, without its NaNs."""
    first = _First()
    for values in _chunks(raster, band):
        first.add(values)
    if not first.count:
        return Spread(0, None, None, None, None, {})
    second = _Second(first)
    for values in _chunks(raster, band):
        second.add(values)
    deviation = math.sqrt(second.squares / first.count)
    return Spread(first.count, first.minimum, first.maximum, first.mean, deviation, second.percentiles())


def _chunks(raster: Path, band: int) -> Iterator[Values]:
    with without_georeference(), rasterio.open(raster, driver="GTiff") as dataset:
        for _, window in dataset.block_windows(band):
            values = dataset.read(band, window=window)
            yield values[~np.isnan(values)]


def _keys(values: Values) -> npt.NDArray[np.uint32]:
    """Return whole numbers in the values' order: float32's bits, turned round where they are negative."""
    bits = (values + np.float32(0)).view(np.uint32)  # -0 is 0
    return np.where(bits >> 31, ~bits, bits | np.uint32(2**31))


def _value(key: int) -> float:
    bits = key & 0x7FFFFFFF if key >> 31 else ~key & 0xFFFFFFFF
    return float(np.array([bits], dtype=np.uint32).view(np.float32)[0])


@dataclass(slots=True)
class _First:
    """Counts by the upper half of the keys."""

    count: int = 0
    total: float = 0.0
    minimum: float = math.inf
    maximum: float = -math.inf
    upper: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(_HALF, np.int64))

    @property
    def mean(self) -> float:
        return self.total / self.count

    def add(self, values: Values) -> None:
        if values.size:
            self.count += values.size
            self.total += float(values.sum(dtype=np.float64))
            self.minimum = min(self.minimum, float(values.min()))
            self.maximum = max(self.maximum, float(values.max()))
            self.upper += np.bincount(_keys(values) >> 16, minlength=_HALF)


class _Second:
    """Counts by the lower half, of those keys that a percentile is among; and squares about the mean."""

    def __init__(self, first: _First) -> None:
        self._mean, self.squares = first.mean, 0.0
        ends = np.cumsum(first.upper)
        ranks = {percent: max(1, math.ceil(percent * first.count / 100)) for percent in PERCENTILES}
        #: Of each percentile: the upper half of its key, and its rank among the keys that share it.
        self._places = {}
        for percent, rank in ranks.items():
            upper = int(np.searchsorted(ends, rank))
            self._places[percent] = upper, rank - int(ends[upper] - first.upper[upper])
        self._lower = {upper: np.zeros(_HALF, np.int64) for upper, _ in self._places.values()}

    def add(self, values: Values) -> None:
        self.squares += float(np.square(values.astype(np.float64) - self._mean).sum())
        keys = _keys(values)
        for upper, counts in self._lower.items():
            counts += np.bincount(keys[keys >> 16 == upper] & (_HALF - 1), minlength=_HALF)

    def percentiles(self) -> dict[int, float]:
        """Return the value at each percentile's rank."""
        return {
            percent: _value(upper << 16 | int(np.searchsorted(np.cumsum(self._lower[upper]), rank)))
            for percent, (upper, rank) in self._places.items()
        }
