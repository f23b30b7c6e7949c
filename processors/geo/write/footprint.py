"""Footprint of a scene: its outline in longitude and latitude, from its transform, control points or RPCs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import shapely
from pyproj import CRS, Transformer
from pyproj.exceptions import ProjError

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
        columns, rows, x, y = np.array([(p.col, p.row, p.x, p.y) for p in scene.gcps], dtype=np.float64).T
        xy, crs = _flat(np.stack([x, y], axis=1), CRS.from_wkt(scene.gcps_crs.to_wkt()))
        points = [
            rasterio.control.GroundControlPoint(row=row, col=column, x=x, y=y)
            for row, column, (x, y) in zip(rows.tolist(), columns.tolist(), xy.tolist(), strict=True)
        ]
        return _transformed(pixels, rasterio.transform.GCPTransformer, points), crs
    if scene.rpcs is not None:
        height_m = scene.rpcs.height_off
        placed = _transformed(pixels, rasterio.transform.RPCTransformer, scene.rpcs, RPC_HEIGHT=height_m)
        return placed, CRS.from_epsg(4326)
    raise NoLonLat("the scene has no georeference")


def _flat(xy: Coordinates, crs: CRS) -> tuple[Coordinates, CRS]:
    """Return points of a geographic CRS on a map around their middle, where a fit meets no antimeridian and no pole."""
    if not crs.is_geographic:
        return xy, crs
    lon, lat = np.radians(_lonlat(xy, crs)).T
    east, north, up = np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)
    x, y, z = float(east.mean()), float(north.mean()), float(up.mean())
    middle = {"lat_0": float(np.degrees(np.arctan2(z, np.hypot(x, y)))), "lon_0": float(np.degrees(np.arctan2(y, x)))}
    flat = CRS.from_dict({"proj": "laea", "datum": "WGS84", **middle})
    return _moved(xy, crs, flat), flat


def _lonlat(xy: Coordinates, crs: CRS) -> Coordinates:
    return _moved(xy, crs, CRS.from_epsg(4326))


def _moved(xy: Coordinates, source: CRS, target: CRS) -> Coordinates:
    try:
        moved = np.stack(Transformer.from_crs(source, target, always_xy=True).transform(*xy.T), axis=1)
    except ProjError as error:
        raise NoLonLat("there is no transformation from the CRS of its control points") from error
    return _finite(moved)


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
