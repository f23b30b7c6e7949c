"""Pixel areas on the ellipsoid, for every CRS.

Most projections do not preserve areas: UTM has errors of up to 0.2 %, polar stereographic of several percent, Mercator
of 1/cos² of the latitude. Therefore the area scale of the CRS is measured with geodesics at the nodes of a coarse grid
over the scene, and interpolated linearly between the nodes. The relative error is below 1e-5 for scenes of up to some
thousand kilometres. Reasons: `docs/decisions/0013-areas.md`.
"""

from __future__ import annotations

from functools import cached_property
from math import ceil, hypot, radians
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from pyproj import CRS, Geod, Transformer

from penstock.processors.geo.tiling.plan import Box

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

#: Distance of nodes in metres. The relative error half way between nodes is about (20 km / 6371 km)² / 8.
_NODES_M = 20_000.0
#: Maximum nodes per side, so that measuring takes at most a quarter of a second.
_MAX_NODES = 256
#: Distance of the measured points in metres, far above the error of inverse projections (at most a millimetre).
_STEP_M = 100.0
_EARTH_M = 6_371_000.0


class PixelArea:
    """Areas of a scene's pixels in m²."""

    #: Name of the method in the statistics.
    method = "geodesic"

    def __init__(self, ground: _Ground, transform: Any, height: int, width: int) -> None:
        self._ground, self._transform = ground, transform
        a, b, _, d, e, _ = tuple(transform)[:6]
        self._rows = _nodes(height, hypot(b, e) * ground.unit_m)
        self._columns = _nodes(width, hypot(a, d) * ground.unit_m)

    def of(self, box: Box) -> Floats:
        """Return float64 (rows, columns): each pixel's area in m², NaN outside the area of the CRS."""
        rows, columns = _centres(box.top, box.bottom), _centres(box.left, box.right)
        (down, i), (along, j) = _weights(self._rows, rows), _weights(self._columns, columns)
        nodes = self._m2[i, j]
        unknown = np.isnan(nodes)
        m2 = np.asarray(down @ np.where(unknown, 0, nodes) @ along.T)
        if unknown.any():
            y, x = np.nonzero(down @ unknown @ along.T)  # pixels next to such a node, which may be valid
            m2[y, x] = self._exactly(rows[y], columns[x])
        return m2

    def above(self, rows: Integers, columns: Integers) -> Floats:
        """Return the area of all pixels above and to the left of pixel corners (a summed-area table).

        NaN where some of the area is unknown. The area of a rectangle is a sum of four of these values.
        """
        (top, down), (left, along) = _between(self._rows, rows), _between(self._columns, columns)
        down_px = rows - self._rows[top]

        def beside(m2: Floats, sums: Floats, at: Integers) -> Floats:
            """Return the integral along a row of nodes up to the column."""
            mean = _interpolated(m2[at, left], m2[at, left + 1], along / 2)
            return np.asarray(sums[at, left] + mean * (columns - self._columns[left]))

        upper, lower = (beside(self._m2, self._m2_across, i) for i in (top, top + 1))
        return beside(self._m2_down, self._sums, top) + _interpolated(upper, lower, down / 2) * down_px

    @cached_property
    def _m2(self) -> Floats:
        """Pixel area at the nodes (rows, columns)."""
        rows, columns = np.meshgrid(self._rows, self._columns, indexing="ij")
        return self._exactly(rows, columns)

    @cached_property
    def _m2_down(self) -> Floats:
        return _integrals(self._m2.T, self._rows).T

    @cached_property
    def _m2_across(self) -> Floats:
        return _integrals(self._m2, self._columns)

    @cached_property
    def _sums(self) -> Floats:
        return _integrals(self._m2_down, self._columns)

    def _exactly(self, rows: npt.NDArray[Any], columns: npt.NDArray[Any]) -> Floats:
        a, b, c, d, e, f = tuple(self._transform)[:6]
        x, y = a * columns + b * rows + c, d * columns + e * rows + f
        return self._ground.density(x, y) * abs(float(self._transform.determinant))


class _Ground:
    """Transformation from a CRS to its ellipsoid."""

    def __init__(self, crs: CRS, geodetic: CRS, geod: Geod) -> None:
        """Create it for a horizontal CRS, its geodetic CRS, and the ellipsoid."""
        self._geod: Final = geod
        self._to_angles = Transformer.from_crs(crs, geodetic, always_xy=True)
        self._degrees = np.degrees(geodetic.axis_info[0].unit_conversion_factor)
        unit = crs.axis_info[0].unit_conversion_factor
        #: Approximate length of one CRS unit in metres.
        self.unit_m = unit * _EARTH_M if crs.is_geographic else unit
        self._pole = radians(90) / unit if crs.is_geographic and not crs.is_derived else None

    def density(self, x: Floats, y: Floats) -> Floats:
        """Return m² on the ellipsoid per square unit of the CRS; NaN outside the area of the CRS.

        Neighbours half a step away on each side are projected to a plane around each point that preserves distances
        and directions from the point (azimuthal equidistant).
        """
        step = _STEP_M / self.unit_m
        here = self._place(x, y)
        offsets = ((step / 2, 0), (-step / 2, 0), (0, step / 2), (0, -step / 2))
        east, west, north, south = (self._side_px(here, self._place(x + dx, y + dy)) for dx, dy in offsets)
        (ax, ay), (bx, by) = east - west, north - south
        return np.asarray(np.abs(ax * by - ay * bx) / step**2)

    def _side_px(self, here: Floats, there: Floats) -> Floats:
        azimuth, _, distance = self._geod.inv(*here, *there)
        angle = np.radians(azimuth)
        return np.stack([distance * np.sin(angle), distance * np.cos(angle)])

    def _place(self, x: Floats, y: Floats) -> Floats:
        """Return longitudes and latitudes in degrees; NaN if undefined."""
        if self._pole is not None:
            y = np.clip(y, -self._pole, self._pole)
        places: Floats = np.stack(self._to_angles.transform(x, y)) * self._degrees
        places[:, ~np.isfinite(places).all(axis=0)] = np.nan
        return places


def pixel_area(crs: Any | None, transform: Any | None, height: int, width: int) -> PixelArea | None:
    """Return the pixel areas of a scene; None without a usable georeference (no CRS, or GCPs only)."""
    if crs is None or transform is None or not (crs.is_geographic or crs.is_projected):
        return None
    horizontal = _horizontal(CRS.from_wkt(crs.to_wkt()))
    derived = horizontal.is_geographic and horizontal.is_derived
    geodetic = horizontal.source_crs if derived else horizontal.geodetic_crs
    geod = geodetic.get_geod() if geodetic else None
    if geodetic is None or geod is None:
        return None
    return PixelArea(_Ground(horizontal, geodetic, geod), transform, height, width)


def _horizontal(crs: CRS) -> CRS:
    """Return the horizontal part of a CRS, without heights and datum shifts."""
    if crs.is_compound:
        return _horizontal(crs.sub_crs_list[0])
    return _horizontal(crs.source_crs) if crs.is_bound and crs.source_crs is not None else crs


def _nodes(side: int, pixel_m: float) -> Integers:
    """Return the pixel edges of the nodes: both ends, and evenly spaced between them."""
    parts = max(1, min(side, _MAX_NODES, ceil(side * pixel_m / _NODES_M)))
    return np.rint(np.linspace(0, side, parts + 1)).astype(np.int64)


def _centres(first: int, last: int) -> Floats:
    """Return the centres of pixels."""
    return np.arange(first, last, dtype=np.float64) + 0.5


def _between(nodes: Integers, at: npt.NDArray[Any]) -> tuple[Integers, Floats]:
    """Return the node before each position, and the relative distance to it (0 to 1)."""
    before = np.clip(np.searchsorted(nodes, at, side="right") - 1, 0, len(nodes) - 2)
    return before, (at - nodes[before]) / np.diff(nodes)[before]


def _weights(nodes: Integers, at: Floats) -> tuple[Floats, slice]:
    """Return interpolation weights (positions, nodes) at ascending positions, and the slice of the used nodes."""
    before, share = _between(nodes, at)
    first, last = int(before[0]), int(before[-1]) + 2
    weights = np.zeros((len(at), last - first))
    number = np.arange(len(at))
    weights[number, before - first], weights[number, before - first + 1] = 1 - share, share
    return weights, slice(first, last)


def _interpolated(first: Floats, second: Floats, share: Floats) -> Floats:
    """Return the linear interpolation of two arrays; `share` is the weight of the second."""
    return first * (1 - share) + second * share


def _integrals(values: Floats, nodes: Integers) -> Floats:
    """Return the integrals along the last axis from the first node to each node (trapezoidal rule)."""
    parts = (values[:, 1:] + values[:, :-1]) / 2 * np.diff(nodes)
    return np.concatenate([np.zeros((len(values), 1)), np.cumsum(parts, axis=1)], axis=1)
