"""Footprint of a scene: its outline in longitude and latitude, from its transform, control points or RPCs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import shapely
from pyproj import CRS
from pyproj.exceptions import ProjError

from penstock.processors.geo.read.control_points import control_points
from penstock.processors.geo.read.gdal import CPLE_BaseError, RasterioError, rasterio
from penstock.processors.geo.read.raster import Scene
from penstock.processors.geo.write.lonlat import Coordinates, Geometries, NoLonLat, ToLonLat, in_the_crs

#: Points of the longer side of a scene.
_OUTLINE_POINTS = 32


def footprint(scene: Scene) -> Any | None:
    """Return the scene's outline in EPSG:4326, split at the antimeridian; None if it is unknown.

    Control points are fitted by a polynomial, as in `gdalwarp`: of degree 2 from six points on, else of degree 1. RPCs
    are evaluated at their own mean height, without a terrain model. Only points on straight lines are removed, because
    near a pole a larger tolerance would cut off parts of the scene.
    """
    box: Geometries = np.array([shapely.box(0, 0, scene.width, scene.height)])
    pixels = shapely.segmentize(box, max(scene.width, scene.height) / _OUTLINE_POINTS)
    try:
        placed, crs = _placed(pixels, scene)
        step = float(shapely.length(placed)[0]) / (4 * _OUTLINE_POINTS)
        return shapely.simplify(ToLonLat(crs, step, step / 100).polygons(placed)[0], 0)
    except NoLonLat:
        return None


def _placed(pixels: Geometries, scene: Scene) -> tuple[Geometries, Any]:
    """Return polygons of pixel coordinates in a CRS, and the CRS; raise `NoLonLat` if they cannot be placed."""
    if scene.transform is not None:
        return in_the_crs(pixels, scene.transform), scene.crs
    if scene.gcps and scene.gcps_crs is not None:
        try:
            ground = control_points(scene.gcps, scene.gcps_crs)
        except ProjError as error:
            raise NoLonLat("its control points have no place") from error
        return _transformed(pixels, rasterio.transform.GCPTransformer, list(ground.points)), ground.crs
    if scene.rpcs is not None:
        height_m = scene.rpcs.height_off
        placed = _transformed(pixels, rasterio.transform.RPCTransformer, scene.rpcs, RPC_HEIGHT=height_m)
        return placed, CRS.from_epsg(4326)
    raise NoLonLat("the scene has no georeference")


def _transformed(pixels: Geometries, transformer: Any, *given: Any, **options: Any) -> Geometries:
    """Return polygons moved by one of rasterio's transformers."""

    def place(xy: Coordinates) -> Coordinates:
        columns, rows = xy.T
        with transformer(*given, **options) as moved:
            return _finite(np.stack(moved.xy(rows, columns, offset="ul"), axis=1))

    try:
        placed = np.asarray(shapely.transform(pixels, place))
    except (RasterioError, CPLE_BaseError, ValueError) as error:
        raise NoLonLat("its control points or RPCs give no place") from error
    if not shapely.is_valid(placed).all():
        raise NoLonLat("its outline crosses itself, as with control points in the wrong order")
    return placed


def _finite(xy: npt.NDArray[np.float64]) -> Coordinates:
    if not np.isfinite(xy).all():
        raise NoLonLat("parts of it are outside the area where its georeference is defined")
    return xy
