"""Exact percentiles and moments of a large float raster, in two passes and constant memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.processors.geo.read.gdal import rasterio, without_georeference

#: Reported percentiles, in percent.
PERCENTILES = (1, 5, 25, 50, 75, 95, 99)
_HALF = 2**16

Values = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class BandStatistics:
    """Statistics of a band's values without NaN; None if there are no values."""

    count: int
    minimum: float | None
    maximum: float | None
    mean: float | None
    #: Population standard deviation.
    deviation: float | None
    #: Percentiles by percent (nearest rank, so each one is a value of the band).
    percentiles: dict[int, float]

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the statistics."""
        return {
            "count": self.count,
            "min": self.minimum,
            "max": self.maximum,
            "mean": self.mean,
            "std": self.deviation,
            "percentiles": {str(percent): value for percent, value in self.percentiles.items()},
        }


def read_band_statistics(raster: Path, band: int) -> BandStatistics:
    """Return the statistics of a band of a float32 raster, without NaN."""
    first = _FirstPass()
    for values in _chunks(raster, band):
        first.add(values)
    if not first.count:
        return BandStatistics(0, None, None, None, None, {})
    second = _SecondPass(first)
    for values in _chunks(raster, band):
        second.add(values)
    deviation = math.sqrt(second.squares / first.count)
    return BandStatistics(first.count, first.minimum, first.maximum, first.mean, deviation, second.percentiles())


def _chunks(raster: Path, band: int) -> Iterator[Values]:
    with without_georeference(), rasterio.open(raster, driver="GTiff") as dataset:
        for _, window in dataset.block_windows(band):
            values = dataset.read(band, window=window)
            yield values[~np.isnan(values)]


def _keys(values: Values) -> npt.NDArray[np.uint32]:
    """Return integers in the order of the values: the bits of float32, inverted for negative values."""
    bits = (values + np.float32(0)).view(np.uint32)  # -0 is 0
    return np.where(bits >> 31, ~bits, bits | np.uint32(2**31))


def _value(key: int) -> float:
    bits = key & 0x7FFFFFFF if key >> 31 else ~key & 0xFFFFFFFF
    return float(np.array([bits], dtype=np.uint32).view(np.float32)[0])


@dataclass(slots=True)
class _FirstPass:
    """First pass: histogram of the upper 16 bits of the keys, mean and range."""

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


class _SecondPass:
    """Second pass: histogram of the lower 16 bits where a percentile falls, and sum of squared deviations."""

    def __init__(self, first: _FirstPass) -> None:
        self._mean, self.squares = first.mean, 0.0
        ends = np.cumsum(first.upper)
        ranks = {percent: max(1, math.ceil(percent * first.count / 100)) for percent in PERCENTILES}
        #: For each percentile: the upper bits of its key, and its rank among the keys with the same upper bits.
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
        """Return the value of each percentile."""
        return {
            percent: _value(upper << 16 | int(np.searchsorted(np.cumsum(self._lower[upper]), rank)))
            for percent, (upper, rank) in self._places.items()
        }
