"""Polygons in longitude and latitude as required by RFC 7946: EPSG:4326, split at the antimeridian, CCW exteriors.

Longitudes are unwrapped along each ring, so that a ring across the antimeridian continues beyond 180°. The region is
then split at the antimeridian, and its parts are shifted back to -180° to 180°. A ring around a pole is closed along
the pole.
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

from penstock.errors import InvalidInput, Issue

Coordinates = npt.NDArray[np.float64]
#: Array of shapely geometries.
Geometries = npt.NDArray[Any]

#: Decimals of a degree; 1e-8 degrees are about a millimetre.
_DECIMALS = 8
#: Latitude from which a point is treated as the pole (a vertex of many polar scenes), without longitude.
_POLE = 90 - 1e-7
#: Difference of longitudes above which two neighbours are on different sides of the antimeridian or of a pole.
_JUMP = 180 - 1e-7
#: Maximum number of bisections of a line; sufficient even near a pole.
_MOST_HALVINGS = 12


class NoLonLat(Exception):
    """The coordinates have no longitude and latitude."""


class ToLonLat:
    """Transformation of polygons from a CRS to EPSG:4326. Raises `NoLonLat` where it is undefined."""

    def __init__(self, crs: Any, step: float, bend: float) -> None:
        """Create the transformation for a CRS, or raise `NoLonLat` for None.

        Straight lines in a projected CRS are curves in EPSG:4326. Lines are divided into segments of `step`, and into
        shorter ones if the middle of a segment deviates by more than `bend` (both in the CRS's unit). Near a pole even
        short segments deviate.
        """
        if crs is None:
            raise NoLonLat("the scene has no CRS")
        source = CRS.from_wkt(crs.to_wkt())
        self._angular = source.is_geographic
        self._bend = bend
        self._step = math.radians(45) / source.axis_info[0].unit_conversion_factor if self._angular else step
        try:
            self._transformer = Transformer.from_crs(source, CRS.from_epsg(4326), always_xy=True)
        except ProjError as error:
            raise NoLonLat("there is no transformation from its CRS to longitude and latitude") from error

    def polygons(self, polygons: Geometries) -> Geometries:
        """Return a polygon or multi-polygon in EPSG:4326 for each polygon of the CRS."""
        moved = self._moved(shapely.segmentize(polygons, self._step))
        for index in np.flatnonzero(self._crossing(moved)):
            moved[index] = _folded(moved[index], poles=not self._angular)
        return np.asarray(shapely.orient_polygons(moved))

    def _moved(self, polygons: Geometries) -> Geometries:
        """Return the polygons in EPSG:4326, with additional points on lines that become curves."""
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
        """Return True for lines that deviate from their chord in EPSG:4326, except meridians to or across a pole."""
        turn = (end[:, 0] - start[:, 0] + 180) % 360 - 180
        chord = np.stack([start[:, 0] + turn / 2, (start[:, 1] + end[:, 1]) / 2], axis=1)
        back = np.stack(self._transformer.transform(chord[:, 0], chord[:, 1], direction="INVERSE"), axis=1)
        to_pole = np.maximum(np.abs(start[:, 1]), np.abs(end[:, 1])) >= _POLE
        away = ~(np.hypot(*(back - middle).T) <= self._bend)
        return np.asarray(away & ~to_pole & (np.abs(turn) < _JUMP))

    def _place(self, xy: Coordinates) -> Coordinates:
        lonlat = np.stack(self._transformer.transform(xy[:, 0], xy[:, 1]), axis=1)
        if not np.isfinite(lonlat).all():
            raise NoLonLat("parts of it are outside the area where its CRS is defined")
        return np.round(lonlat, _DECIMALS)

    def _crossing(self, polygons: Geometries) -> npt.NDArray[np.bool_]:
        """Return True for polygons that cross the antimeridian or touch a pole."""
        lonlat, owner = shapely.get_coordinates(polygons, return_index=True)
        rings = np.repeat(*_ring_lengths(polygons))
        jumps = (np.abs(np.diff(lonlat[:, 0])) >= _JUMP) & (np.diff(rings) == 0)
        odd = np.abs(lonlat[:, 0]) > 180
        odd[1:] |= jumps
        if not self._angular:
            odd |= np.abs(lonlat[:, 1]) >= _POLE
        return np.bincount(owner[odd], minlength=len(polygons)).astype(bool)


def in_the_crs(shapes: Geometries, transform: Any) -> Geometries:
    """Return polygons in CRS coordinates from polygons in pixel coordinates, with rasterio's formula."""
    a, b, c, d, e, f = tuple(transform)[:6]

    def place(xy: Coordinates) -> Coordinates:
        x, y = xy.T
        return np.stack([a * x + b * y + c, d * x + e * y + f], axis=1)

    return np.asarray(shapely.transform(shapes, place))


def in_another_crs(shapes: Geometries, scene_crs: Any, transform: Any, crs: str) -> Geometries:
    """Return polygons in the coordinates of another CRS, x first, from polygons in pixel coordinates: their corners.

    Raises `NoLonLat` for places where the CRS is not defined.
    """
    transformer = _between(scene_crs, crs)

    def place(xy: Coordinates) -> Coordinates:
        return np.stack(transformer.transform(*xy.T), axis=1)

    moved = shapely.transform(in_the_crs(shapes, transform), place)
    if not np.isfinite(shapely.get_coordinates(moved)).all():
        raise NoLonLat(f"parts of it are outside the area where {crs} is defined")
    return np.asarray(moved)


def check_crs(scene_crs: Any, crs: str) -> None:
    """Raise `InvalidInput` for a code of no CRS, or of one to which the scene's has no way."""
    try:
        _between(scene_crs, crs)
    except ProjError as error:
        detail = f"There is no CRS {crs!r}, or no way from the scene's to it: give a code such as EPSG:32738."
        raise InvalidInput(detail, errors=[Issue("/input/crs", "is not usable")]) from error


def _between(scene_crs: Any, crs: str) -> Transformer:
    return Transformer.from_crs(CRS.from_wkt(scene_crs.to_wkt()), CRS.from_user_input(crs), always_xy=True)


def lonlat_bounds(geometry: Any) -> tuple[float, float, float, float]:
    """Return west, south, east and north of a geometry in EPSG:4326; west > east if it crosses the antimeridian.

    The result is the smallest bounding box: it excludes the widest empty range of longitudes.
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
    """Return the region inside a ring of longitudes and latitudes, split to -180° to 180°."""
    region = shapely.make_valid(shapely.polygons(_followed(shapely.get_coordinates(ring), poles)))
    west, _, east, _ = shapely.bounds(region)
    pieces = []
    for turn in range(math.floor((west + 180) / 360), math.floor((east + 180) / 360) + 1):
        piece = shapely.intersection(region, shapely.box(360 * turn - 180, -90, 360 * turn + 180, 90))
        pieces.append(shapely.transform(piece, lambda xy, turn=turn: np.round(xy - (360 * turn, 0), _DECIMALS)))
    return _polygonal(shapely.union_all(pieces))


def _followed(ring: Coordinates, poles: bool) -> Coordinates:
    """Return a closed ring with unwrapped longitudes; at a pole it follows the latitude of the pole."""
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
    if abs(lon[-1] - lon[0]) > 1:  # once around the pole
        points += [(lon[-1], pole), (lon[0], pole)]
    return np.array(points)


def _polygonal(geometry: Any) -> Any:
    """Return only the polygons of a geometry; points and lines, where parts merely touch, are dropped."""
    parts = shapely.get_parts(shapely.get_parts(geometry))
    return shapely.union_all(parts[shapely.get_dimensions(parts) == 2])
