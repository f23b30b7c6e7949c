"""Pixels, area and share of each class, tile by tile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from pyproj import CRS

from penstock.processors.geo.options import NODATA, ClassLabel
from penstock.processors.geo.plan import Box


@dataclass(frozen=True, slots=True)
class PixelArea:
    """The area of pixels in m²: everywhere the same, or by latitude on the CRS's ellipsoid."""

    transform: Any
    #: Of every pixel; None for a geographic CRS.
    plane_m2: float | None
    semi_major_m: float = 0.0
    eccentricity_squared: float = 0.0
    radians_per_unit: float = 0.0

    @property
    def method(self) -> str:
        """`projected` (in the CRS's plane, without its distortion) or `geodesic` (on its ellipsoid)."""
        return "geodesic" if self.plane_m2 is None else "projected"

    def of(self, box: Box) -> npt.NDArray[np.float64]:
        """Return m² per pixel, broadcastable to the box's shape."""
        if self.plane_m2 is not None:
            return np.full((1, 1), self.plane_m2)
        _, _, _, d, e, f = tuple(self.transform)[:6]
        rows = np.arange(box.top, box.bottom)[:, None] + 0.5
        columns = np.arange(box.left, box.right)[None, :] + 0.5 if d else np.zeros((1, 1))
        latitude = np.clip((d * columns + e * rows + f) * self.radians_per_unit, -np.pi / 2, np.pi / 2)
        # Radii of curvature M along the meridian and N across it: an area element is M N cos(latitude).
        flat = 1 - self.eccentricity_squared * np.sin(latitude) ** 2
        m_n = self.semi_major_m**2 * (1 - self.eccentricity_squared) / flat**2
        density: npt.NDArray[np.float64] = m_n * np.cos(latitude) * self.radians_per_unit**2
        return density * abs(float(self.transform.determinant))


def pixel_area(crs: Any | None, transform: Any | None) -> PixelArea | None:
    """Return how large pixels are, or None where the file does not say where it lies (no CRS, or GCPs only)."""
    if crs is None or transform is None or not (crs.is_geographic or crs.is_projected):
        return None
    unit = float(crs.units_factor[1])
    if crs.is_projected:
        return PixelArea(transform, abs(transform.determinant) * unit**2)
    ellipsoid = CRS.from_wkt(crs.to_wkt()).ellipsoid
    if ellipsoid is None:
        return None
    a, b = ellipsoid.semi_major_metre, ellipsoid.semi_minor_metre
    return PixelArea(transform, None, a, 1 - (b / a) ** 2, unit)


@dataclass(slots=True)
class Tally:
    """The running counts. Tiles come in the plan's order, so that the sums are the same on every run."""

    area: PixelArea | None
    pixels: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(NODATA + 1, dtype=np.int64))
    m2: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(NODATA + 1))

    def add(self, classes: npt.NDArray[np.uint8], box: Box) -> None:
        """Count a tile's class ids; `NODATA` is no class."""
        ids = classes.ravel()
        self.pixels += np.bincount(ids, minlength=NODATA + 1)
        if self.area is not None:
            m2 = np.broadcast_to(self.area.of(box), classes.shape).ravel()
            self.m2 += np.bincount(ids, weights=m2, minlength=NODATA + 1)

    def to_json(self, labels: Sequence[ClassLabel], total: int) -> dict[str, Any]:
        """Return the counts of a scene of `total` pixels; what was never counted is nodata."""
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
