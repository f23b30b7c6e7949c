"""Area of a request on a scene's pixel grid: the part of the scene whose results are wanted.

A pixel belongs to the area if its centre lies inside or on an edge, to a millionth of a pixel: an area that is given in
two parts, as across the antimeridian, has the pixels between them. The results have the scene's grid, cut to the
smallest box of pixels that contains the area.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import shapely
from pyproj import CRS
from pyproj.exceptions import ProjError

from penstock.processors.geo.area_request import AreaRequest
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.read.placed_polygons import (
    Subject,
    are_degrees,
    check_edges,
    crs_of,
    degrees_of,
    ground_of,
    inside_scene,
    place_shape,
    scene_bounds,
    shape_of,
)
from penstock.processors.geo.read.raster import Scene
from penstock.processors.geo.tiling.plan import Box

_AREA: Final = Subject("The area", "/input/area")
#: Distance in pixels within which a centre lies on an edge; coordinates are computed to 1e-9 px.
_ON_EDGE_PX: Final = 1e-6
#: Side in pixels of the squares that are compared with the area as a whole before their pixels are.
_SQUARE_PX = 64
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


def find_area(request: AreaRequest, scene: Scene) -> SceneArea:
    """Return the requested area on the scene's grid.

    Raises `InvalidInput` for a scene without a georeference, an unknown CRS, an area that is not valid or empty, and
    an area outside the scene.
    """
    ground, crs = ground_of(scene, _AREA), crs_of(request.crs, _AREA)
    shape = _given(request, crs, ground.crs)
    try:
        placed = place_shape(shape, crs, ground, _AREA)
    except ProjError as error:
        raise _AREA.wrong("has parts without a place in the scene's CRS: give an area near the scene.") from error
    placed = shapely.buffer(placed, _ON_EDGE_PX, join_style="mitre")
    inside = inside_scene(placed, ground, scene.height, scene.width)
    if inside.is_empty:
        raise _AREA.wrong(_outside(shape, request.crs, scene), "lies outside the scene")
    box = _pixel_box(inside)
    shapely.prepare(inside)
    area = SceneArea(inside, box) if box is not None else None
    if area is None or not _has_pixels(area):
        raise _AREA.wrong("contains the centre of no pixel: it is smaller than the scene's pixels.")
    return area


def area_notes(request: AreaRequest, scene: Scene) -> tuple[str, ...]:
    """Return a note on a rectangle across the antimeridian for a scene that is far from there; else nothing."""
    if request.bbox is None or request.bbox[0] <= request.bbox[2]:
        return ()
    ends = scene_bounds(scene, request.crs)
    if ends is None or ends[0] > ends[2] or max(abs(ends[0]), abs(ends[2])) > 180 - _NEAR_DEGREES:
        return ()
    west, _, east, _ = request.bbox
    note = (
        f"The area's west ({west:g}) is greater than its east ({east:g}): the area was taken to go from {west:g} "
        f"eastwards across the antimeridian to {east:g}. The scene lies far from there: if you mean the rectangle "
        f"between {east:g} and {west:g}, give [west, south, east, north]."
    )
    return (note,)


def _check_degrees(bounds: Any, request: AreaRequest, crs: CRS, of_scene: CRS) -> None:
    """Raise `InvalidInput` for bounds that are no degrees, as metres of a map without `crs` are not."""
    if not are_degrees(bounds, crs):
        code = ":".join(of_scene.to_authority() or ("EPSG", "CODE"))
        raise _AREA.error(
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
    shapes = [shape_of(geometry, _AREA) for geometry in request.geometries]
    for shape in shapes if crs.is_geographic else ():
        check_edges(shape, degrees_of(crs), _AREA)
    return shapes[0] if len(shapes) == 1 else shapely.union_all(shapes)


def _bounds(request: AreaRequest) -> Any:
    """Return the lowest x and y, and the highest, of all positions of the request."""
    if request.bbox is not None:
        return request.bbox
    parts = [[one.coordinates] if one.type == "Polygon" else one.coordinates for one in request.geometries]
    points = np.array([point[:2] for part in parts for rings in part for ring in rings for point in ring])
    return [*points.min(axis=0).tolist(), *points.max(axis=0).tolist()]


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
    """Return the error's predicate for an area outside the scene, with the bounds of both."""
    ends = scene_bounds(scene, crs)
    there = "" if ends is None else f" The scene spans {_words(ends)} in {crs}."
    return f"lies outside the scene: it spans {_words(shapely.bounds(shape).tolist())}.{there}"


def _words(bounds: Any) -> str:
    west, south, east, north = (f"{side:.6g}" for side in bounds)
    return f"{west} to {east} (x) and {south} to {north} (y)"


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
