"""Statistics of classes: pixels, area and percentage, accumulated tile by tile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.processors.geo.options import NODATA, ClassLabel
from penstock.processors.geo.tiling.plan import Box
from penstock.processors.geo.write.area import PixelArea

#: Pixels and area of the classes in a piece of a scene: a row (id, pixels, m²) for each class that it has.
Counts = Sequence[tuple[int, int, float]]


@dataclass(slots=True)
class ClassCounts:
    """Running counts. Pieces are added in the plan's order, so that the sums are identical in every run.

    A piece is counted once, where it is made: its counts are saved with it.
    """

    area: PixelArea | None
    pixels: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(NODATA + 1, dtype=np.int64))
    m2: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(NODATA + 1))

    def of(self, classes: npt.NDArray[np.uint8], box: Box) -> Counts:
        """Return the counts of a box from its class ids, uint8 (rows, columns); `NODATA` is not a class."""
        ids = classes.ravel().astype(np.intp)  # once: `bincount` would convert them each time
        pixels = np.bincount(ids, minlength=NODATA + 1)
        m2 = np.zeros(NODATA + 1)
        if self.area is not None:
            m2 += np.bincount(ids, weights=self.area.of(box).ravel(), minlength=NODATA + 1)
        return [(int(each), int(pixels[each]), float(m2[each])) for each in np.flatnonzero(pixels)]

    def add(self, counts: Counts) -> None:
        """Add the counts of a piece."""
        for each, pixels, m2 in counts:
            self.pixels[each] += pixels
            self.m2[each] += m2

    def to_json(self, labels: Sequence[ClassLabel], total: int) -> dict[str, Any]:
        """Return the counts of a scene of `total` pixels; pixels that were never counted are nodata."""
        valid = int(self.pixels[:NODATA].sum())
        return {
            "pixels": total,
            "valid_pixels": valid,
            "nodata_pixels": total - valid,
            "area_method": self.area.method if self.area else None,
            "classes": [self._of(label, valid) for label in labels],
        }

    def _of(self, label: ClassLabel, valid: int) -> dict[str, Any]:
        pixels, m2 = int(self.pixels[label.id]), float(self.m2[label.id])
        return {
            "id": label.id,
            "name": label.name,
            "colour": label.colour,
            "pixels": pixels,
            "area_m2": round(m2, 3) if self.area and math.isfinite(m2) else None,
            "percent": round(100 * pixels / valid, 4) if valid else None,
        }
