"""Polygons of any CRS as RFC 7946 wants them: EPSG:4326, cut at the antimeridian, exteriors counter-clockwise.

Longitudes are followed along each ring, so that one that crosses the antimeridian runs on past 180°; its region is
then cut there and the pieces are put back between -180° and 180°. A ring that goes once round a pole is closed over it.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import shapely
from pyproj import CRS, Transformer
from pyproj.exceptions import ProjError

Coordinates = npt.NDArray[np.float64]
#: shapely's geometries, in a numpy array.
Geometries = npt.NDArray[Any]

#: 1e-8 degrees are a millimetre.
_DECIMALS = 8
#: So close to a pole, which is a vertex of many polar scenes, longitudes mean nothing.
_POLE = 90 - 1e-7
#: Two neighbours this far apart lie on both sides of the antimeridian, or of a pole.
_JUMP = 180 - 1e-7
#: How often a line is halved at most: then it is a hair's breadth, however near to a pole it goes by.
_MOST_HALVINGS = 12


class Unplaceable(Exception):
    """The places have no longitude and latitude."""


class ToLonLat:
    """Brings polygons from a CRS to EPSG:4326. Raises `Unplaceable` where that is not defined."""

    def __init__(self, crs: Any, step: float, bend: float) -> None:
        """Take a CRS, or None where a scene has none.

        Lines that are straight in a projected CRS are curves in EPSG:4326: they are followed in pieces of `step`, and
        in shorter ones where the middle of a piece would be more than `bend` away from the line (both in the CRS's
        unit). Near a pole that is so of lines that are short.
        """
        if crs is None:
            raise Unplaceable("the scene has no CRS")
        source = CRS.from_wkt(crs.to_wkt())
        self._angular = source.is_geographic
        self._bend = bend
        self._step = math.radians(45) / source.axis_info[0].unit_conversion_factor if self._angular else step
        try:
            self._transformer = Transformer.from_crs(source, CRS.from_epsg(4326), always_xy=True)
        except ProjError as error:
            raise Unplaceable("its CRS has no known relation to longitude and latitude") from error

    def polygons(self, polygons: Geometries) -> Geometries:
        """Return for each polygon of the CRS a polygon or multi-polygon."""
        moved = self._moved(shapely.segmentize(polygons, self._step))
        for index in np.flatnonzero(self._crossing(moved)):
            moved[index] = _folded(moved[index], poles=not self._angular)
        return np.asarray(shapely.orient_polygons(moved))

    def _moved(self, polygons: Geometries) -> Geometries:
        """Return the polygons in EPSG:4326, with further points where lines are curves there."""
        rings, owner = shapely.get_rings(polygons, return_index=True)
        xy, ring = shapely.get_coordinates(rings, return_index=True)
        lonlat = self._place(xy)
        left = np.flatnonzero(ring[1:] == ring[:-1])
        for _ in range(0 if self._angular else _MOST_HALVINGS):
            middle = (xy[left] + xy[left + 1]) / 2
            placed = self._place(middle)
            bent = self._is_bent(middle, lonlat[left], lonlat[left + 1])
            if not bent.any():
                break
            before = left[bent] + 1
            xy, lonlat = np.insert(xy, before, middle[bent], axis=0), np.insert(lonlat, before, placed[bent], axis=0)
            ring = np.insert(ring, before, ring[before])
            halves = before + np.arange(len(before))
            left = np.stack([halves - 1, halves], axis=1).reshape(-1)
        return np.asarray(shapely.polygons(shapely.linearrings(lonlat, indices=ring), indices=owner))

    def _is_bent(self, middle: Coordinates, start: Coordinates, end: Coordinates) -> npt.NDArray[np.bool_]:
        """Return which lines leave their chord in EPSG:4326; never those over a pole, nor to it: they are meridians."""
        turn = (end[:, 0] - start[:, 0] + 180) % 360 - 180
        chord = np.stack([start[:, 0] + turn / 2, (start[:, 1] + end[:, 1]) / 2], axis=1)
        back = np.stack(self._transformer.transform(chord[:, 0], chord[:, 1], direction="INVERSE"), axis=1)
        to_pole = np.maximum(np.abs(start[:, 1]), np.abs(end[:, 1])) >= _POLE
        away = ~(np.hypot(*(back - middle).T) <= self._bend)
        return np.asarray(away & ~to_pole & (np.abs(turn) < _JUMP))

    def _place(self, xy: Coordinates) -> Coordinates:
        lonlat = np.stack(self._transformer.transform(xy[:, 0], xy[:, 1]), axis=1)
        if not np.isfinite(lonlat).all():
            raise Unplaceable("parts of it lie where its CRS is not defined")
        return np.round(lonlat, _DECIMALS)

    def _crossing(self, polygons: Geometries) -> npt.NDArray[np.bool_]:
        """Return which polygons cannot stay as they are."""
        lonlat, owner = shapely.get_coordinates(polygons, return_index=True)
        rings = np.repeat(*_ring_lengths(polygons))
        jumps = (np.abs(np.diff(lonlat[:, 0])) >= _JUMP) & (np.diff(rings) == 0)
        odd = np.abs(lonlat[:, 0]) > 180
        odd[1:] |= jumps
        if not self._angular:
            odd |= np.abs(lonlat[:, 1]) >= _POLE
        return np.bincount(owner[odd], minlength=len(polygons)).astype(bool)


def in_the_crs(shapes: Geometries, transform: Any) -> Geometries:
    """Return polygons in pixels in the scene's coordinates, computed as rasterio does."""
    a, b, c, d, e, f = tuple(transform)[:6]

    def place(xy: Coordinates) -> Coordinates:
        x, y = xy.T
        return np.stack([a * x + b * y + c, d * x + e * y + f], axis=1)

    return np.asarray(shapely.transform(shapes, place))


def lonlat_bounds(geometry: Any) -> tuple[float, float, float, float]:
    """Return west, south, east and north of a geometry in EPSG:4326; west is above east across the antimeridian.

    It is the smallest such box: it leaves out the widest range of longitudes in which nothing lies.
    """
    _, south, _, north = shapely.bounds(geometry).tolist()
    spans: list[tuple[float, float]] = []
    for west, _, east, _ in sorted(shapely.bounds(shapely.get_parts(geometry)).tolist()):
        if spans and west <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(spans[-1][1], east)
        else:
            spans.append((west, east))
    around = (spans[0][0] + 360 - spans[-1][1], spans[0][0], spans[-1][1])
    between = [(right[0] - left[1], right[0], left[1]) for left, right in pairwise(spans)]
    _, west, east = max([around, *between], key=lambda gap: gap[0])
    return west, south, east, north


def _ring_lengths(polygons: Geometries) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    counts = shapely.get_num_coordinates(shapely.get_rings(polygons))
    return np.arange(len(counts)), counts


def _folded(polygon: Any, *, poles: bool) -> Any:
    holes = [_region(ring, poles) for ring in shapely.get_rings(polygon)[1:]]
    outside = _region(shapely.get_exterior_ring(polygon), poles)
    return _polygonal(shapely.difference(outside, shapely.union_all(holes)))


def _region(ring: Any, poles: bool) -> Any:
    """Return what a ring of longitudes and latitudes encloses, between -180° and 180°."""
    region = shapely.make_valid(shapely.polygons(_followed(shapely.get_coordinates(ring), poles)))
    west, _, east, _ = shapely.bounds(region)
    pieces = []
    for turn in range(math.floor((west + 180) / 360), math.floor((east + 180) / 360) + 1):
        piece = shapely.intersection(region, shapely.box(360 * turn - 180, -90, 360 * turn + 180, 90))
        pieces.append(shapely.transform(piece, lambda xy, turn=turn: np.round(xy - (360 * turn, 0), _DECIMALS)))
    return _polygonal(shapely.union_all(pieces))


def _followed(ring: Coordinates, poles: bool) -> Coordinates:
    """Return a closed ring whose longitudes do not jump, with its way along a pole's latitude where it meets one."""
    kept = np.abs(ring[:-1, 1]) < _POLE if poles else np.ones(len(ring) - 1, dtype=bool)
    at = np.flatnonzero(kept)
    at = np.append(at, at[0])
    lon, lat = np.unwrap(ring[at, 0], period=360), ring[at, 1]
    meets = (np.diff(at) % len(kept) != 1 % len(kept)) if poles else np.zeros(len(at) - 1, dtype=bool)
    meets |= np.abs(np.diff(lon)) >= _JUMP
    pole = math.copysign(90, lat.mean())
    points = [(lon[0], lat[0])]
    for i, at_pole in enumerate(meets.tolist()):
        if at_pole:
            points += [(lon[i], pole), (lon[i + 1], pole)]
        points.append((lon[i + 1], lat[i + 1]))
    if abs(lon[-1] - lon[0]) > 1:  # once round
        points += [(lon[-1], pole), (lon[0], pole)]
    return np.array(points)


def _polygonal(geometry: Any) -> Any:
    """Return the polygons in a geometry; points and lines, where pieces only touch, are dropped."""
    parts = shapely.get_parts(shapely.get_parts(geometry))
    return shapely.union_all(parts[shapely.get_dimensions(parts) == 2])
