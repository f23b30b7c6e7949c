"""Area of a request on a scene's pixel grid: the part of the scene whose results are wanted.

A pixel belongs to the area if its centre lies inside or on an edge, to a millionth of a pixel: an area that is given in
two parts, as across the antimeridian, has the pixels between them. The results have the scene's grid, cut to the
smallest box of pixels that contains the area.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import shapely
from pyproj import CRS, Transformer
from pyproj.exceptions import CRSError, ProjError

from penstock.errors import InvalidInput, Issue
from penstock.processors.geo.area_request import AreaRequest, MultiPolygonGeometry, PolygonGeometry
from penstock.processors.geo.read.control_points import control_points
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.read.raster import Scene
from penstock.processors.geo.tiling.plan import Box

Coordinates = npt.NDArray[np.float64]

_POINTER = "/input/area"
#: Largest distance in pixels between an edge of the area and its image on the scene's grid.
_BEND_PX: Final = 0.01
#: Distance in pixels within which a centre lies on an edge; coordinates are computed to 1e-9 px.
_ON_EDGE_PX: Final = 1e-6
#: Halvings of an edge, at most, and points of an area on the grid.
_MAX_HALVINGS, _MAX_POINTS = 14, 1_000_000
#: Side in pixels of the squares that are compared with the area as a whole before their pixels are.
_SQUARE_PX = 64
#: Latitudes and longitudes beyond these are no degrees; an area may go on beyond 180.
_MOST_LATITUDE, _MOST_LONGITUDE = 90.001, 540
#: Degrees from the antimeridian within which a scene may well have an area across it.
_NEAR_DEGREES: Final = 10


@dataclass(frozen=True, slots=True, eq=False)
class SceneArea:
    """An area in a scene's pixel coordinates."""

    #: Polygon or multipolygon inside the scene, with its edges; x are columns, y are rows.
    shape: Any
    #: Smallest box that contains the pixels of the area.
    box: Box

    @property
    def is_box(self) -> bool:
        """True if every pixel of the box belongs to the area."""
        return bool(self.shape.covers(_square(self.box, inset=0.5)))

    def touches(self, box: Box) -> bool:
        """Return True if the area may have pixels in a box."""
        found = box.clipped(self.box)
        if found is None:
            return False
        return bool(shapely.intersects(self.shape, _square(found, inset=2 * _ON_EDGE_PX)))

    def mask(self, box: Box) -> npt.NDArray[np.bool_]:
        """Return bool (rows, columns): True for the pixels of a box whose centres lie inside the area.

        Each pixel is decided by itself, so that its value does not depend on the box.
        """
        mask = np.zeros((box.height, box.width), dtype=bool)
        squares = list(_squares(box))
        shapes = np.array([_square(square) for square in squares], dtype=object)
        inside = shapely.contains_properly(self.shape, shapes)
        crossed = ~inside & shapely.intersects(self.shape, shapes)
        for square, whole, some in zip(squares, inside.tolist(), crossed.tolist(), strict=True):
            at = square.within(box)
            if whole:
                mask[at.top : at.bottom, at.left : at.right] = True
            elif some:
                x, y = np.arange(square.left, square.right) + 0.5, np.arange(square.top, square.bottom) + 0.5
                mask[at.top : at.bottom, at.left : at.right] = shapely.contains_xy(self.shape, *np.meshgrid(x, y))
        return mask

    def grid(self, scene: Scene) -> Scene:
        """Return the header of a scene that is cut to the area's box."""
        box, transform = self.box, scene.transform
        if transform is None:
            points = tuple(
                type(p)(row=p.row - box.top, col=p.col - box.left, x=p.x, y=p.y, z=p.z, id=p.id, info=p.info)
                for p in scene.gcps
            )
            return replace(scene, height=box.height, width=box.width, gcps=points)
        moved = transform @ rasterio.Affine.translation(box.left, box.top)
        return replace(scene, height=box.height, width=box.width, transform=moved)

    def to_json(self) -> dict[str, Any]:
        """Return the area as recorded in the statistics: its box in pixels of the scene."""
        box = self.box
        return {"rows": [box.top, box.bottom], "columns": [box.left, box.right], "whole_box": self.is_box}

    def facts(self) -> list[Any]:
        """Return the area as JSON values that are equal for equal areas only."""
        return [self.shape.wkb_hex]


@dataclass(frozen=True, slots=True)
class _OnGround:
    """The CRS of a scene, and the way from there to its pixels."""

    crs: CRS
    #: Columns and rows (n, 2) of positions (n, 2).
    to_pixels: Callable[[Coordinates], Coordinates]
    #: The inverse of the scene's transform; None for a scene with control points.
    affine: Any | None = None


def find_area(request: AreaRequest, scene: Scene) -> SceneArea:
    """Return the requested area on the scene's grid.

    Raises `InvalidInput` for a scene without a georeference, an unknown CRS, an area that is not valid or empty, and
    an area outside the scene.
    """
    ground, crs = _ground(scene), _crs(request.crs)
    shape = _given(request, crs, ground.crs)
    placed = _on_the_grid(shape, crs, ground)
    inside = _inside(placed, ground, scene)
    if inside.is_empty:
        raise _wrong(_outside(shape, request.crs, scene), "lies outside the scene")
    box = _pixel_box(inside)
    shapely.prepare(inside)
    area = SceneArea(inside, box) if box is not None else None
    if area is None or not _has_pixels(area):
        raise _wrong("The area contains the centre of no pixel: it is smaller than the scene's pixels.")
    return area


def _ground(scene: Scene) -> _OnGround:
    """Return the CRS and the pixels of a scene. Raises `InvalidInput` for a scene without a georeference."""
    if scene.transform is not None and scene.crs is not None:
        inverse = ~scene.transform
        return _OnGround(CRS.from_wkt(scene.crs.to_wkt()), lambda xy: _affine(inverse, xy), inverse)
    if scene.transform is None and scene.gcps and scene.gcps_crs is not None:
        try:
            points = control_points(scene.gcps, scene.gcps_crs)
            points.to_pixels(np.array([(point.x, point.y) for point in points.points]))
        except ProjError as error:
            raise _wrong(f"An area needs the scene's place: {error}.") from error
        return _OnGround(points.crs, points.to_pixels)
    raise _wrong(
        "An area needs a scene with a CRS and a geotransform, or with ground control points; the file has none."
    )


def area_notes(request: AreaRequest, scene: Scene) -> tuple[str, ...]:
    """Return a note on a rectangle across the antimeridian for a scene that is far from there; else nothing."""
    if request.bbox is None or request.bbox[0] <= request.bbox[2]:
        return ()
    ends = _scene_bounds(scene, request.crs)
    if ends is None or ends[0] > ends[2] or max(abs(ends[0]), abs(ends[2])) > 180 - _NEAR_DEGREES:
        return ()
    west, _, east, _ = request.bbox
    note = (
        f"The area's west ({west:g}) is greater than its east ({east:g}): the area was taken to go from {west:g} "
        f"eastwards across the antimeridian to {east:g}. The scene lies far from there: if you mean the rectangle "
        f"between {east:g} and {west:g}, give [west, south, east, north]."
    )
    return (note,)


def _check_edges(shape: Any, degrees: float) -> None:
    """Raise `InvalidInput` for an edge longer than half of the earth, as between 179 and -179; `degrees` per unit."""
    for ring in _rings(shape):
        x = ring[:, 0]
        long = np.flatnonzero(np.abs(np.diff(x)) * degrees > 180)
        if long.size:
            start, end = x[long[0] : long[0] + 2].tolist()
            beyond = end + math.copysign(360 / degrees, start - end)
            raise _wrong(
                f"The area has an edge from the longitude {start:.10g} to {end:.10g}, longer than 180 degrees. An area "
                f"across the antimeridian is a MultiPolygon with a part on each side (RFC 7946), or a Polygon with "
                f"longitudes beyond 180: {beyond:.10g} instead of {end:.10g}. If the long edge is meant, give "
                "positions on it.",
                "has an edge longer than 180 degrees",
                "/geometry",
            )


def _wrong(sentence: str, issue: str = "is not usable", place: str = "") -> InvalidInput:
    return InvalidInput(sentence, errors=[Issue(_POINTER + place, issue)])


def _check_degrees(bounds: Any, request: AreaRequest, crs: CRS, of_scene: CRS) -> None:
    """Raise `InvalidInput` for bounds that are no degrees, as metres of a map without `crs` are not."""
    west, south, east, north = (abs(float(side)) * _degrees(crs) for side in bounds)
    if max(south, north) > _MOST_LATITUDE or max(west, east) > _MOST_LONGITUDE:
        code = ":".join(of_scene.to_authority() or ("EPSG", "CODE"))
        raise _wrong(
            f"The area's coordinates are not degrees of {request.crs}: it spans {_words(bounds)}. Give their `crs` in "
            f'the area: "crs": "{code}" if they are in the scene\'s CRS.',
            "is not the CRS of the coordinates",
            "/crs",
        )


def _given(request: AreaRequest, crs: CRS, of_scene: CRS) -> Any:
    """Return the request's area as a shapely geometry in its own CRS; features of a collection are united.

    `of_scene` is the scene's CRS.
    """
    if crs.is_geographic:
        _check_degrees(_bounds(request), request, crs, of_scene)
    if request.bbox is not None:
        west, south, east, north = request.bbox
        if west > east:  # across the antimeridian, as in GeoJSON
            return shapely.union(shapely.box(west, south, 180, north), shapely.box(-180, south, east, north))
        return shapely.box(west, south, east, north)
    shapes = [_shape(geometry) for geometry in request.geometries]
    for shape in shapes if crs.is_geographic else ():
        _check_edges(shape, _degrees(crs))
    return shapes[0] if len(shapes) == 1 else shapely.union_all(shapes)


def _bounds(request: AreaRequest) -> Any:
    """Return the lowest x and y, and the highest, of all positions of the request."""
    if request.bbox is not None:
        return request.bbox
    parts = [[one.coordinates] if one.type == "Polygon" else one.coordinates for one in request.geometries]
    points = np.array([point[:2] for part in parts for rings in part for ring in rings for point in ring])
    return [*points.min(axis=0).tolist(), *points.max(axis=0).tolist()]


def _shape(geometry: PolygonGeometry | MultiPolygonGeometry) -> Any:
    """Return a GeoJSON geometry as a shapely geometry. Raises `InvalidInput` for one that is not valid or empty."""
    parts = [geometry.coordinates] if geometry.type == "Polygon" else geometry.coordinates
    shape = shapely.multipolygons([_polygon(part) for part in parts])
    if not shape.is_valid:
        raise _wrong(
            f"The area is not a valid polygon: {_reason(shape)}. Its edges must not cross each other.",
            "is not a valid polygon",
            "/geometry",
        )
    if shape.area == 0:
        raise _wrong("The area is empty: its polygon has no surface.", "is empty", "/geometry")
    return shape


def _polygon(rings: Any) -> Any:
    """Return a polygon from its rings; heights are dropped."""
    try:
        outside, *holes = [[point[:2] for point in ring] for ring in rings]
        polygon = shapely.Polygon(outside, holes)
    except (ValueError, shapely.errors.GEOSException) as error:
        raise _wrong(f"The area is not a valid polygon: {error}.", "is not a valid polygon", "/geometry") from error
    if any(ring[0] != ring[-1] for ring in (outside, *holes)):
        why = "The area is not a valid polygon: a ring is not closed; its last position must repeat the first."
        raise _wrong(why, "is not a valid polygon", "/geometry")
    return polygon


def _reason(shape: Any) -> str:
    reason = str(shapely.is_valid_reason(shape))
    kind, _, place = reason.partition("[")
    return f"{kind.strip().lower()} at {place.rstrip(']')}" if place else reason


def _crs(name: str) -> CRS:
    try:
        return CRS.from_user_input(name)
    except CRSError as error:
        raise _wrong(
            f"There is no CRS {name!r}; give a code such as EPSG:32738.", "is not a known CRS", "/crs"
        ) from error


def _on_the_grid(shape: Any, crs: CRS, ground: _OnGround) -> Any:
    """Return the shape in pixels of a scene. Edges that bend there get more points."""
    target = ground.crs
    if ground.affine is not None and (crs == target or crs.equals(target, ignore_axis_order=True)):
        return shapely.transform(shape, ground.to_pixels)
    try:
        transformer = Transformer.from_crs(crs, target, always_xy=True)
    except ProjError as error:
        raise _wrong(f"There is no transformation from {crs.name} to the scene's CRS.", place="/crs") from error

    def place(xy: Coordinates) -> Coordinates:
        moved = np.stack(transformer.transform(*xy.T), axis=1)
        if not np.isfinite(moved).all():
            raise _wrong("Parts of the area have no place in the scene's CRS: give an area near the scene.")
        return ground.to_pixels(moved)

    placed = shapely.transform(_with_bends(shape, place), place)
    return placed if placed.is_valid else _polygonal(shapely.make_valid(placed))


def _inside(placed: Any, ground: _OnGround, scene: Scene) -> Any:
    """Return the part of a placed area inside the scene, with its edges.

    A scene in degrees may go on beyond 180°: 170° to 190°.
    """
    placed = shapely.buffer(placed, _ON_EDGE_PX, join_style="mitre")
    whole = shapely.box(0, 0, scene.width, scene.height)
    to_pixels = ground.affine
    turn = 360 / _degrees(ground.crs) if to_pixels is not None and ground.crs.is_geographic else 0
    steps = [(k * turn * to_pixels.a, k * turn * to_pixels.d) for k in (-1, 0, 1)] if turn and to_pixels else [(0, 0)]
    copies = [shapely.transform(placed, lambda xy, step=step: np.add(xy, step)) for step in steps]
    return _polygonal(shapely.union_all(shapely.intersection(np.array(copies, dtype=object), whole)))


def _degrees(crs: CRS) -> float:
    """Return the degrees of one unit of a geographic CRS."""
    return math.degrees(crs.axis_info[0].unit_conversion_factor)


def _affine(transform: Any, xy: Coordinates) -> Coordinates:
    a, b, c, d, e, f = tuple(transform)[:6]
    x, y = xy.T
    return np.stack([a * x + b * y + c, d * x + e * y + f], axis=1)


def _with_bends(shape: Any, place: Any) -> Any:
    """Return the shape with so many points that its placed edges deviate by at most `_BEND_PX` from the true ones."""
    for _ in range(_MAX_HALVINGS):
        rings = _rings(shape)
        middles = [(ring[1:] + ring[:-1]) / 2 for ring in rings]
        bent = [_bends(place, ring, middle) for ring, middle in zip(rings, middles, strict=True)]
        if not any(some.any() for some in bent):
            break
        if sum(map(len, rings)) > _MAX_POINTS:
            raise _wrong(f"The area has more than {_MAX_POINTS:,} points on the scene's grid: simplify it.")
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


def _pixel_box(shape: Any) -> Box | None:
    """Return the box of the pixels whose centres lie inside the bounds of a shape; None if there are none."""
    left, top, right, bottom = shapely.bounds(shape).tolist()
    box = Box(
        *(math.floor(side - 0.5) + 1 for side in (top, left)), *(math.ceil(side - 0.5) for side in (bottom, right))
    )
    return box if box.height > 0 and box.width > 0 else None


def _has_pixels(area: SceneArea) -> bool:
    return any(area.mask(square).any() for square in _squares(area.box))


def _outside(shape: Any, crs: str, scene: Scene) -> str:
    """Return the error for an area outside the scene, with the bounds of both."""
    ends = _scene_bounds(scene, crs)
    there = "" if ends is None else f" The scene spans {_words(ends)} in {crs}."
    return f"The area lies outside the scene: it spans {_words(shapely.bounds(shape).tolist())}.{there}"


def _scene_bounds(scene: Scene, crs: str) -> tuple[float, float, float, float] | None:
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


def _words(bounds: Any) -> str:
    west, south, east, north = (f"{side:.6g}" for side in bounds)
    return f"{west} to {east} (x) and {south} to {north} (y)"


def _polygonal(geometry: Any) -> Any:
    """Return only the polygons of a geometry."""
    parts = shapely.get_parts(shapely.get_parts(geometry))
    return shapely.union_all(parts[shapely.get_dimensions(parts) == 2])


def _square(box: Box, *, inset: float = 0) -> Any:
    """Return a box as a polygon, smaller by `inset` on each side."""
    return shapely.box(box.left + inset, box.top + inset, box.right - inset, box.bottom - inset)


def _squares(box: Box) -> Any:
    """Yield the squares that cover a box, at multiples of their side from the scene's corner."""
    for top in range(box.top - box.top % _SQUARE_PX, box.bottom, _SQUARE_PX):
        for left in range(box.left - box.left % _SQUARE_PX, box.right, _SQUARE_PX):
            square = Box(top, left, top + _SQUARE_PX, left + _SQUARE_PX).clipped(box)
            if square is not None:
                yield square
