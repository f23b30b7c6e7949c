"""How large pixels are on the ground: on the ellipsoid, whatever the CRS.

A projection's plane is rarely true to areas: UTM's is wrong by up to 0.2 %, polar stereographic's by several percent,
Mercator's by 1/cos² of the latitude. So what a unit of the CRS's plane has on the ellipsoid is measured by geodesics at
the nodes of a coarse grid over the scene, and taken to be linear between them, which is wrong by less than 1e-5 up to
some thousand kilometres. Why so: `docs/decisions/0013-areas.md`.
"""

from __future__ import annotations

from functools import cached_property
from math import ceil, hypot, radians
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from pyproj import CRS, Geod, Transformer

from penstock.processors.geo.plan import Box

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

#: Areas bend with the earth: half way between nodes they are wrong by about (20 km / 6371 km)² / 8.
_NODES_M = 20_000.0
#: Along either side of a scene, so that measuring takes a quarter of a second at most.
_MAX_NODES = 256
#: How far from a node is measured: far above what inverse projections leave undecided (a millimetre at worst).
_STEP_M = 100.0
_EARTH_M = 6_371_000.0


class PixelArea:
    """The areas of a scene's pixels in m²."""

    #: As the statistics name it.
    method = "geodesic"

    def __init__(self, ground: _Ground, transform: Any, height: int, width: int) -> None:
        self._ground, self._transform = ground, transform
        a, b, _, d, e, _ = tuple(transform)[:6]
        self._rows = _nodes(height, hypot(b, e) * ground.unit_m)
        self._columns = _nodes(width, hypot(a, d) * ground.unit_m)

    def of(self, box: Box) -> Floats:
        """Return float64 (rows, columns): each pixel's area, NaN where the CRS has no place on the earth."""
        rows, columns = _middles(box.top, box.bottom), _middles(box.left, box.right)
        (down, i), (along, j) = _weights(self._rows, rows), _weights(self._columns, columns)
        nodes = self._m2[i, j]
        placeless = np.isnan(nodes)
        m2 = np.asarray(down @ np.where(placeless, 0, nodes) @ along.T)
        if placeless.any():
            y, x = np.nonzero(down @ placeless @ along.T)  # beside such a node; they may have a place
            m2[y, x] = self._exactly(rows[y], columns[x])
        return m2

    def above(self, rows: Integers, columns: Integers) -> Floats:
        """Return the area of all pixels above and to the left of pixels' corners.

        NaN where not all of it is known. What lies between corners is the sum and difference of four of these.
        """
        (top, down), (left, along) = _between(self._rows, rows), _between(self._columns, columns)
        down_px = rows - self._rows[top]

        def beside(m2: Floats, sums: Floats, at: Integers) -> Floats:
            """Return the integral along a row of nodes, up to the column."""
            mean = _mixed(m2[at, left], m2[at, left + 1], along / 2)
            return np.asarray(sums[at, left] + mean * (columns - self._columns[left]))

        upper, lower = (beside(self._m2, self._m2_across, i) for i in (top, top + 1))
        return beside(self._m2_down, self._sums, top) + _mixed(upper, lower, down / 2) * down_px

    @cached_property
    def _m2(self) -> Floats:
        """At the nodes (rows, columns): the area of a pixel."""
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
    """Where a CRS's coordinates lie on its ellipsoid."""

    def __init__(self, crs: CRS, geodetic: CRS, geod: Geod) -> None:
        """Take a horizontal CRS, and the one of longitudes and latitudes below it with its ellipsoid."""
        self._geod: Final = geod
        self._to_angles = Transformer.from_crs(crs, geodetic, always_xy=True)
        self._degrees = np.degrees(geodetic.axis_info[0].unit_conversion_factor)
        unit = crs.axis_info[0].unit_conversion_factor
        #: What a unit of the CRS is in metres, about.
        self.unit_m = unit * _EARTH_M if crs.is_geographic else unit
        self._pole = radians(90) / unit if crs.is_geographic and not crs.is_derived else None

    def density(self, x: Floats, y: Floats) -> Floats:
        """Return m² on the ellipsoid per square unit of the CRS; NaN where it has no place on the earth.

        Neighbours half a step away on either side are placed in the plane about each point that keeps distances and
        directions from it.
        """
        step = _STEP_M / self.unit_m
        here = self._place(x, y)
        offsets = ((step / 2, 0), (-step / 2, 0), (0, step / 2), (0, -step / 2))
        east, west, north, south = (self._seen(here, self._place(x + dx, y + dy)) for dx, dy in offsets)
        (ax, ay), (bx, by) = east - west, north - south
        return np.asarray(np.abs(ax * by - ay * bx) / step**2)

    def _seen(self, here: Floats, there: Floats) -> Floats:
        azimuth, _, distance = self._geod.inv(*here, *there)
        angle = np.radians(azimuth)
        return np.stack([distance * np.sin(angle), distance * np.cos(angle)])

    def _place(self, x: Floats, y: Floats) -> Floats:
        """Return longitudes and latitudes in degrees, NaN where there are none."""
        if self._pole is not None:
            y = np.clip(y, -self._pole, self._pole)
        places: Floats = np.stack(self._to_angles.transform(x, y)) * self._degrees
        places[:, ~np.isfinite(places).all(axis=0)] = np.nan
        return places


def pixel_area(crs: Any | None, transform: Any | None, height: int, width: int) -> PixelArea | None:
    """Return how large a scene's pixels are, or None where it does not say where it lies (no CRS, or GCPs only)."""
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
    """Return the part of a CRS that places points on the ground, without heights and shifts to other datums."""
    if crs.is_compound:
        return _horizontal(crs.sub_crs_list[0])
    return _horizontal(crs.source_crs) if crs.is_bound and crs.source_crs is not None else crs


def _nodes(side: int, pixel_m: float) -> Integers:
    """Return at which edges of pixels nodes lie: at both ends, and evenly between them."""
    parts = max(1, min(side, _MAX_NODES, ceil(side * pixel_m / _NODES_M)))
    return np.rint(np.linspace(0, side, parts + 1)).astype(np.int64)


def _middles(first: int, last: int) -> Floats:
    """Return where pixels have their middle."""
    return np.arange(first, last, dtype=np.float64) + 0.5


def _between(nodes: Integers, at: npt.NDArray[Any]) -> tuple[Integers, Floats]:
    """Return the node before each place, and how far it is to the next: 0 to 1."""
    before = np.clip(np.searchsorted(nodes, at, side="right") - 1, 0, len(nodes) - 2)
    return before, (at - nodes[before]) / np.diff(nodes)[before]


def _weights(nodes: Integers, at: Floats) -> tuple[Floats, slice]:
    """Return (places, some nodes) what each node counts at each of the ascending places, and which nodes they are."""
    before, share = _between(nodes, at)
    first, last = int(before[0]), int(before[-1]) + 2
    weights = np.zeros((len(at), last - first))
    number = np.arange(len(at))
    weights[number, before - first], weights[number, before - first + 1] = 1 - share, share
    return weights, slice(first, last)


def _mixed(first: Floats, second: Floats, share: Floats) -> Floats:
    """Return the two with a share of the second."""
    return first * (1 - share) + second * share


def _integrals(values: Floats, nodes: Integers) -> Floats:
    """Return the integrals along the last axis from the first node to each, linear between them."""
    parts = (values[:, 1:] + values[:, :-1]) / 2 * np.diff(nodes)
    return np.concatenate([np.zeros((len(values), 1)), np.cumsum(parts, axis=1)], axis=1)
