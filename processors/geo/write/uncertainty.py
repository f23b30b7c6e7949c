"""Uncertainty of a map: the spread of a network's answers to mirrored copies of each tile.

Of classes, the standard deviation of the probability of the pixel's class, and whether a copy has another class; of
quantities, the standard deviation of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.processors.geo.options import NODATA, ClassLabel
from penstock.processors.geo.write.area import PixelArea
from penstock.processors.geo.write.cog import scratch_rows
from penstock.processors.geo.write.raster_set import RasterArrays, RasterSet
from penstock.processors.geo.write.stac import bands_fields
from penstock.processors.geo.write.stats import ClassCounts

#: Names of the rasters; the second one is for statistics only.
UNCERTAINTY, STABILITY = "uncertainty", "stability"
#: The standard deviation of numbers from 0 to 1 is at most 1/2: 254 of these steps.
_STEPS: Final = 508
_BAND = ["standard deviation of the probability of the class"]
#: Values of the raster of stability.
STABLE, UNSTABLE = range(2)
STABILITIES: Final = tuple(
    ClassLabel(id=at, name=name, colour=colour)
    for at, (name, colour) in enumerate((("stable", "#f0f0f0"), ("unstable", "#d7301f")))
)

Numbers = npt.NDArray[np.float32]


def class_uncertainty(passes: Numbers, valid: npt.NDArray[np.bool_]) -> RasterArrays:
    """Return two arrays uint8 (1, rows, columns) from the probabilities of each pass (passes, classes, rows, columns).

    The first pass decides the class. `uncertainty` is the standard deviation of its probability over the passes, in
    steps of 1/508; `stability` is `UNSTABLE` where another pass has another class.
    """
    ids = passes.argmax(axis=1)
    own = np.take_along_axis(passes, ids[None, :1], axis=1)[:, 0]
    steps = np.rint(np.clip(own, 0, 1).std(axis=0, dtype=np.float64) * _STEPS)
    unstable = (ids[1:] != ids[0]).any(axis=0)
    return {
        UNCERTAINTY: np.where(valid, steps, NODATA).astype(np.uint8)[None],
        STABILITY: np.where(valid, unstable, NODATA).astype(np.uint8)[None],
    }


def value_uncertainty(passes: Numbers, valid: npt.NDArray[np.bool_]) -> RasterArrays:
    """Return the standard deviation of the values of each pass (passes, quantities, rows, columns).

    It is float32 (quantities, rows, columns); NaN for nodata, and where a pass has no finite value.
    """
    with np.errstate(invalid="ignore"):
        spread = passes.std(axis=0, dtype=np.float64).astype(np.float32)
    return {UNCERTAINTY: np.where(valid & np.isfinite(spread), spread, np.float32(np.nan))}


def open_class_uncertainty(rasters: RasterSet) -> None:
    """Create the rasters of `class_uncertainty` in a set."""
    rasters.open(UNCERTAINTY, 1).label_bands(_BAND, scale=1 / _STEPS)
    rasters.open(STABILITY, 1)


def add_class_uncertainty(
    rasters: RasterSet, labels: Sequence[ClassLabel], area: PixelArea | None, passes: int
) -> dict[str, Any]:
    """Add the COG of the closed rasters, and return the entry of the statistics."""
    every, unstable = ClassCounts(area), ClassCounts(area)
    steps = np.zeros(NODATA + 1, dtype=np.int64)
    for box, (classes, stability, found) in scratch_rows(
        [rasters.path(n) for n in ("classes", STABILITY, UNCERTAINTY)]
    ):
        every.add(every.of(classes, box))
        unstable.add(unstable.of(np.where(stability == UNSTABLE, classes, np.uint8(NODATA)), box))
        steps += np.bincount(found.ravel(), minlength=NODATA + 1)
    rasters.add_cog(UNCERTAINTY, "AVERAGE", bands_fields(_BAND, "uint8", scale=1 / _STEPS))
    counts, valid = steps[:NODATA], int(steps[:NODATA].sum())
    rows = unstable.to_json(labels, int(every.pixels.sum()))["classes"]
    mean = float(counts @ np.arange(NODATA)) / valid / _STEPS if valid else None
    return {
        "method": "flips",
        "passes": passes,
        "mean": None if mean is None else round(mean, 6),
        **_share(int(unstable.pixels[:NODATA].sum()), valid),
        "classes": [
            {
                "id": row["id"],
                "name": row["name"],
                **_share(row["pixels"], int(every.pixels[row["id"]])),
                "unstable_area_m2": row["area_m2"],
            }
            for row in rows
        ],
    }


def _share(unstable: int, pixels: int) -> dict[str, Any]:
    """Return how many of some pixels are unstable."""
    percent = round(100 * unstable / pixels, 4) if pixels else None
    return {"unstable_pixels": unstable, "unstable_percent": percent}
