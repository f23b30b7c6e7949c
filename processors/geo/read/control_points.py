"""Ground control points of a scene: the polynomial between its pixels and the ground, as in `gdalwarp`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pyproj import CRS, Transformer
from pyproj.exceptions import ProjError

from penstock.processors.geo.read.gdal import CPLE_BaseError, RasterioError, rasterio

Coordinates = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class ControlPoints:
    """Control points on a flat map, which is their own CRS if that is projected."""

    crs: CRS
    points: tuple[Any, ...]

    def to_pixels(self, xy: Coordinates) -> Coordinates:
        """Return columns and rows (n, 2) of positions on the map.

        A polynomial of degree 2 from six points on, else of degree 1, fitted to all of them. Raises `ProjError` for
        points that determine none.
        """
        x, y = xy.T
        try:
            with rasterio.transform.GCPTransformer(list(self.points)) as transformer:
                rows, columns = transformer.rowcol(x, y, op=np.positive)
        except (RasterioError, CPLE_BaseError, ValueError) as error:
            raise ProjError("the control points give no place") from error
        return np.stack([columns, rows], axis=1)


def control_points(points: Sequence[Any], crs: Any) -> ControlPoints:
    """Return rasterio's control points in a CRS on a flat map. Raises `ProjError` if they have no place there."""
    columns, rows, x, y = np.array([(p.col, p.row, p.x, p.y) for p in points], dtype=np.float64).T
    xy, flat = _flat(np.stack([x, y], axis=1), CRS.from_wkt(crs.to_wkt()))
    if not np.isfinite(xy).all():
        raise ProjError("parts of it are outside the area where its georeference is defined")
    moved = (
        rasterio.control.GroundControlPoint(row=row, col=column, x=x, y=y)
        for row, column, (x, y) in zip(rows.tolist(), columns.tolist(), xy.tolist(), strict=True)
    )
    return ControlPoints(flat, tuple(moved))


def _flat(xy: Coordinates, crs: CRS) -> tuple[Coordinates, CRS]:
    """Return points of a geographic CRS on a map around their middle, where a fit meets no antimeridian and no pole."""
    if not crs.is_geographic:
        return xy, crs
    lon, lat = np.radians(_moved(xy, crs, CRS.from_epsg(4326))).T
    east, north, up = np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)
    x, y, z = float(east.mean()), float(north.mean()), float(up.mean())
    middle = {"lat_0": float(np.degrees(np.arctan2(z, np.hypot(x, y)))), "lon_0": float(np.degrees(np.arctan2(y, x)))}
    flat = CRS.from_dict({"proj": "laea", "datum": "WGS84", **middle})
    return _moved(xy, crs, flat), flat


def _moved(xy: Coordinates, source: CRS, target: CRS) -> Coordinates:
    return np.stack(Transformer.from_crs(source, target, always_xy=True).transform(*xy.T), axis=1)
