"""Exact percentiles and moments of many float values, such as a large raster's, in two passes and constant memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.processors.geo.read.gdal import rasterio, without_georeference

#: Reported percentiles, in percent.
PERCENTILES = (1, 5, 25, 50, 75, 95, 99)
_HALF = 2**16

#: Share of all weights by which a sum may miss a rank because of rounding.
_ROUNDING = 1e-12

Values = npt.NDArray[np.float32]
Weights = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class BandStatistics:
    """Statistics of values without NaN; None if there are no values."""

    #: Number of values; of weighted values the sum of their weights.
    count: float
    minimum: float | None
    maximum: float | None
    mean: float | None
    #: Population standard deviation.
    deviation: float | None
    #: Percentiles by percent (nearest rank, so each one is one of the values).
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
    return statistics_of(lambda: ((values, None) for values in _chunks(raster, band)))


def statistics_of(read: Callable[[], Iterable[tuple[Values, Weights | None]]]) -> BandStatistics:
    """Return the statistics of values without NaN, which `read` yields in chunks, the same each time it is called.

    Each chunk has weights above 0 for its values, or None. A percentile is then the smallest value such that it and the
    values below have this share of all weights: numpy's method `inverted_cdf`.
    """
    first = _FirstPass()
    for values, weights in read():
        first.add(values, weights)
    if not first.count:
        return BandStatistics(0, None, None, None, None, {})
    second = _SecondPass(first)
    for values, weights in read():
        second.add(values, weights)
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

    count: float = 0
    total: float = 0.0
    minimum: float = math.inf
    maximum: float = -math.inf
    upper: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(_HALF))

    @property
    def mean(self) -> float:
        return self.total / self.count

    def add(self, values: Values, weights: Weights | None) -> None:
        if values.size:
            self.count += values.size if weights is None else float(weights.sum())
            self.total += float(values.sum(dtype=np.float64) if weights is None else (values * weights).sum())
            self.minimum = min(self.minimum, float(values.min()))
            self.maximum = max(self.maximum, float(values.max()))
            self.upper += np.bincount(_keys(values) >> 16, weights, _HALF)


class _SecondPass:
    """Second pass: histogram of the lower 16 bits where a percentile falls, and sum of squared deviations."""

    def __init__(self, first: _FirstPass) -> None:
        self._mean, self.squares = first.mean, 0.0
        ends = np.cumsum(first.upper)
        ranks = {percent: (percent / 100 - _ROUNDING) * first.count for percent in PERCENTILES}
        #: For each percentile: the upper bits of its key, and its rank among the keys with the same upper bits.
        self._places = {}
        for percent, rank in ranks.items():
            upper = int(np.searchsorted(ends, rank))
            self._places[percent] = upper, rank - (ends[upper] - first.upper[upper])
        self._lower = {upper: np.zeros(_HALF) for upper, _ in self._places.values()}

    def add(self, values: Values, weights: Weights | None) -> None:
        squares = np.square(values.astype(np.float64) - self._mean)
        self.squares += float(squares.sum() if weights is None else (squares * weights).sum())
        keys = _keys(values)
        for upper, counts in self._lower.items():
            here = keys >> 16 == upper
            counts += np.bincount(keys[here] & (_HALF - 1), None if weights is None else weights[here], _HALF)

    def percentiles(self) -> dict[int, float]:
        """Return the value of each percentile."""
        found = {}
        for percent, (upper, rank) in self._places.items():
            ends = np.cumsum(self._lower[upper])
            found[percent] = _value(upper << 16 | int(np.searchsorted(ends, min(rank, ends[-1]))))
        return found
