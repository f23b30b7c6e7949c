"""Polygons of a request in the pixel coordinates of a scene: the `area`, and the `zones` of the statistics."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import shapely
from pyproj import CRS, Transformer
from pyproj.exceptions import CRSError, ProjError

from penstock.errors import InvalidInput, Issue
from penstock.processors.geo.area_request import MultiPolygonGeometry, PolygonGeometry
from penstock.processors.geo.read.control_points import control_points
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.read.raster import Scene

Coordinates = npt.NDArray[np.float64]

#: Largest distance in pixels between an edge of a polygon and its image on the scene's grid.
_BEND_PX: Final = 0.01
#: Halvings of an edge, at most, and points of a polygon on the grid.
_MAX_HALVINGS, _MAX_POINTS = 14, 1_000_000
#: Latitudes and longitudes beyond these are no degrees; a polygon may go on beyond 180.
_MOST_LATITUDE, _MOST_LONGITUDE = 90.001, 540


@dataclass(frozen=True, slots=True)
class Subject:
    """Polygons of a request as errors name them: words, and the JSON pointer to their place."""

    #: Beginning of a sentence: `The area`.
    name: str
    pointer: str

    def wrong(self, predicate: str, issue: str = "is not usable", place: str = "") -> InvalidInput:
        """Return the error whose sentence begins with the name."""
        return self.error(f"{self.name} {predicate}", issue, place)

    def error(self, sentence: str, issue: str = "is not usable", place: str = "") -> InvalidInput:
        """Return an error at a place below the pointer."""
        return InvalidInput(sentence, errors=[Issue(self.pointer + place, issue)])


@dataclass(frozen=True, slots=True)
class Ground:
    """The CRS of a scene, and the way from there to its pixels."""

    crs: CRS
    #: Columns and rows (n, 2) of positions (n, 2).
    to_pixels: Callable[[Coordinates], Coordinates]
    #: The inverse of the scene's transform; None for a scene with control points.
    affine: Any | None = None


def ground_of(scene: Scene, subject: Subject) -> Ground:
    """Return the CRS and the pixels of a scene. Raises `InvalidInput` for a scene without a georeference."""
    if scene.transform is not None and scene.crs is not None:
        return ground_of_map(scene.crs, scene.transform)
    if scene.transform is None and scene.gcps and scene.gcps_crs is not None:
        try:
            points = control_points(scene.gcps, scene.gcps_crs)
            points.to_pixels(np.array([(point.x, point.y) for point in points.points]))
        except ProjError as error:
            raise subject.wrong(f"needs the scene's place: {error}.") from error
        return Ground(points.crs, points.to_pixels)
    raise subject.wrong(
        "needs a scene with a CRS and a geotransform, or with ground control points; the file has none."
    )


def ground_of_map(crs: Any, transform: Any) -> Ground:
    """Return the CRS and the pixels of a raster with a CRS and a transform (rasterio objects)."""
    inverse = ~transform
    return Ground(CRS.from_wkt(crs.to_wkt()), lambda xy: _affine(inverse, xy), inverse)


def crs_of(name: str, subject: Subject) -> CRS:
    """Return a CRS by its code; raise `InvalidInput` for an unknown one."""
    try:
        return CRS.from_user_input(name)
    except CRSError as error:
        sentence = f"There is no CRS {name!r}; give a code such as EPSG:32738."
        raise subject.error(sentence, "is not a known CRS", "/crs") from error


def shape_of(geometry: PolygonGeometry | MultiPolygonGeometry, subject: Subject) -> Any:
    """Return a GeoJSON geometry as a shapely geometry. Raises `InvalidInput` for one that is not valid or empty."""
    parts = [geometry.coordinates] if geometry.type == "Polygon" else geometry.coordinates
    shape = shapely.multipolygons([_polygon(part, subject) for part in parts])
    if not shape.is_valid:
        raise subject.wrong(
            f"is not a valid polygon: {_reason(shape)}. Its edges must not cross each other.",
            "is not a valid polygon",
            "/geometry",
        )
    if shape.area == 0:
        raise subject.wrong("is empty: its polygon has no surface.", "is empty", "/geometry")
    return shape


def _polygon(rings: Any, subject: Subject) -> Any:
    """Return a polygon from its rings; heights are dropped."""
    try:
        outside, *holes = [[point[:2] for point in ring] for ring in rings]
        polygon = shapely.Polygon(outside, holes)
    except (ValueError, shapely.errors.GEOSException) as error:
        raise subject.wrong(f"is not a valid polygon: {error}.", "is not a valid polygon", "/geometry") from error
    if any(ring[0] != ring[-1] for ring in (outside, *holes)):
        why = "is not a valid polygon: a ring is not closed; its last position must repeat the first."
        raise subject.wrong(why, "is not a valid polygon", "/geometry")
    return polygon


def _reason(shape: Any) -> str:
    reason = str(shapely.is_valid_reason(shape))
    kind, _, place = reason.partition("[")
    return f"{kind.strip().lower()} at {place.rstrip(']')}" if place else reason


def are_degrees(bounds: Any, crs: CRS) -> bool:
    """Return False for bounds that cannot be of a geographic CRS, as metres of a map are not."""
    west, south, east, north = (abs(float(side)) * degrees_of(crs) for side in bounds)
    return max(south, north) <= _MOST_LATITUDE and max(west, east) <= _MOST_LONGITUDE


def check_edges(shape: Any, degrees: float, subject: Subject) -> None:
    """Raise `InvalidInput` for an edge longer than half of the earth, as between 179 and -179; `degrees` per unit."""
    for ring in _rings(shape):
        x = ring[:, 0]
        long = np.flatnonzero(np.abs(np.diff(x)) * degrees > 180)
        if long.size:
            start, end = x[long[0] : long[0] + 2].tolist()
            beyond = end + math.copysign(360 / degrees, start - end)
            raise subject.wrong(
                f"has an edge from the longitude {start:.10g} to {end:.10g}, longer than 180 degrees. A polygon "
                f"across the antimeridian is a MultiPolygon with a part on each side (RFC 7946), or a Polygon with "
                f"longitudes beyond 180: {beyond:.10g} instead of {end:.10g}. If the long edge is meant, give "
                "positions on it.",
                "has an edge longer than 180 degrees",
                "/geometry",
            )


def place_shape(shape: Any, crs: CRS, ground: Ground, subject: Subject) -> Any:
    """Return a shape in pixels of a scene. Edges that bend there get more points.

    Raises `ProjError` if parts of it have no place in the scene's CRS.
    """
    target = ground.crs
    if ground.affine is not None and (crs == target or crs.equals(target, ignore_axis_order=True)):
        return shapely.transform(shape, ground.to_pixels)
    try:
        transformer = Transformer.from_crs(crs, target, always_xy=True)
    except ProjError as error:
        sentence = f"There is no transformation from {crs.name} to the scene's CRS."
        raise subject.error(sentence, place="/crs") from error

    def place(xy: Coordinates) -> Coordinates:
        moved = np.stack(transformer.transform(*xy.T), axis=1)
        if not np.isfinite(moved).all():
            raise ProjError("no place in the scene's CRS")
        return ground.to_pixels(moved)

    placed = shapely.transform(_with_bends(shape, place, subject), place)
    return placed if placed.is_valid else polygonal(shapely.make_valid(placed))


def inside_scene(placed: Any, ground: Ground, height: int, width: int) -> Any:
    """Return the part of a placed shape inside a scene of a size in pixels.

    A scene in degrees may go on beyond 180°: 170° to 190°.
    """
    whole = shapely.box(0, 0, width, height)
    to_pixels = ground.affine
    turn = 360 / degrees_of(ground.crs) if to_pixels is not None and ground.crs.is_geographic else 0
    steps = [(k * turn * to_pixels.a, k * turn * to_pixels.d) for k in (-1, 0, 1)] if turn and to_pixels else [(0, 0)]
    copies = [shapely.transform(placed, lambda xy, step=step: np.add(xy, step)) for step in steps]
    return polygonal(shapely.union_all(shapely.intersection(np.array(copies, dtype=object), whole)))


def degrees_of(crs: CRS) -> float:
    """Return the degrees of one unit of a geographic CRS."""
    return math.degrees(crs.axis_info[0].unit_conversion_factor)


def scene_bounds(scene: Scene, crs: str) -> tuple[float, float, float, float] | None:
    """Return a scene's west, south, east and north in a CRS; None where it has no place, or control points."""
    if scene.transform is None:
        return None
    left, bottom, right, top = rasterio.transform.array_bounds(scene.height, scene.width, scene.transform)
    try:
        west, south, east, north = rasterio.warp.transform_bounds(
            scene.crs, crs, left, min(bottom, top), right, max(bottom, top)
        )
    except (rasterio.errors.RasterioError, ValueError):
        return None
    return west, south, east, north


def polygonal(geometry: Any) -> Any:
    """Return only the polygons of a geometry."""
    parts = shapely.get_parts(shapely.get_parts(geometry))
    return shapely.union_all(parts[shapely.get_dimensions(parts) == 2])


def _affine(transform: Any, xy: Coordinates) -> Coordinates:
    a, b, c, d, e, f = tuple(transform)[:6]
    x, y = xy.T
    return np.stack([a * x + b * y + c, d * x + e * y + f], axis=1)


def _with_bends(shape: Any, place: Any, subject: Subject) -> Any:
    """Return the shape with so many points that its placed edges deviate by at most `_BEND_PX` from the true ones."""
    for _ in range(_MAX_HALVINGS):
        rings = _rings(shape)
        middles = [(ring[1:] + ring[:-1]) / 2 for ring in rings]
        bent = [_bends(place, ring, middle) for ring, middle in zip(rings, middles, strict=True)]
        if not any(some.any() for some in bent):
            break
        if sum(map(len, rings)) > _MAX_POINTS:
            raise subject.wrong(f"has more than {_MAX_POINTS:,} points on the scene's grid: simplify it.")
        added = [
            np.insert(ring, np.flatnonzero(some) + 1, middle[some], axis=0)
            for ring, middle, some in zip(rings, middles, bent, strict=True)
        ]
        shape = _of_rings(shape, added)
    return shape


def _bends(place: Any, ring: Coordinates, middle: Coordinates) -> npt.NDArray[np.bool_]:
    """Return True for the edges of a ring whose middle is placed far from the middle of their placed ends."""
    ends = place(ring)
    off = place(middle) - (ends[1:] + ends[:-1]) / 2
    return np.asarray(np.hypot(*off.T) > _BEND_PX)


def _rings(shape: Any) -> list[Coordinates]:
    """Return the positions of each ring. `shapely.get_rings` finds none in a multipolygon as a whole."""
    return [shapely.get_coordinates(ring) for ring in shapely.get_rings(shapely.get_parts(shape))]


def _of_rings(shape: Any, rings: list[Coordinates]) -> Any:
    """Return the polygons of a shape with other rings, in the order of `shapely.get_rings`."""
    _, owners = shapely.get_rings(shapely.get_parts(shape), return_index=True)
    parts: dict[int, list[Coordinates]] = {}
    for owner, ring in zip(owners.tolist(), rings, strict=True):
        parts.setdefault(owner, []).append(ring)
    return shapely.multipolygons([shapely.Polygon(outside, holes) for outside, *holes in parts.values()])
