"""Zones for tests, and the shares of pixels that they cover by shapely, pixel by pixel."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import shapely
from pyproj import Proj, Transformer

from tests.support.geo.scenes import NORTH_UP

UTM = "EPSG:32633"
#: Shapes in pixels of a scene of at least 120 x 120: a star with a hole, two neighbours, one of two parts that goes on
#: beyond the scene on the left, one within a pixel, and one elsewhere.
SHAPES: Mapping[str, Any] = {
    "star": shapely.Polygon(
        [
            (60.3, 5.2),
            (70.9, 44.7),
            (110.5, 50.1),
            (72.2, 66.6),
            (80.8, 110.4),
            (55.5, 75.3),
            (8.1, 100.9),
            (40.4, 50.5),
        ],
        [[(60.1, 55.2), (55.3, 60.4), (61.7, 63.8)]],
    ),
    "east": shapely.box(40.25, 10.5, 100.75, 90.125),
    "west": shapely.box(10, 20, 40.25, 90.125),
    "coast": shapely.union(
        shapely.box(-30.5, 3.3, 20.2, 40.4), shapely.Polygon([(90, 90), (118.8, 95.5), (99.9, 117)])
    ),
    "islet": shapely.box(33.25, 33.5, 33.75, 33.75),
    "elsewhere": shapely.box(5000, 5000, 5010, 5010),
}


def shares_of(shape: Any, height: int, width: int) -> npt.NDArray[np.float64]:
    """Return float64 (rows, columns): the share of each pixel that a shape in pixels covers."""
    columns, rows = np.meshgrid(np.arange(width), np.arange(height))
    pixels = shapely.box(columns, rows, columns + 1, rows + 1)
    return np.asarray(shapely.area(shapely.intersection(pixels, shape)))


def pixel_m2(height: int, width: int, transform: Any = NORTH_UP) -> npt.NDArray[np.float64]:
    """Return the area of each pixel of a UTM scene on the ellipsoid, from PROJ's areal scale at its centre."""
    columns, rows = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
    x, y = transform @ (columns, rows)
    lon, lat = Transformer.from_crs(UTM, "EPSG:4326", always_xy=True).transform(x, y)
    scale = Proj(UTM).get_factors(lon, lat).areal_scale
    return np.asarray(abs(transform.determinant) / scale)


def on_the_map(shape: Any, transform: Any = NORTH_UP) -> Any:
    """Return a shape in pixels in the CRS of its scene."""
    return shapely.transform(shape, lambda xy: np.stack(transform @ (xy[:, 0], xy[:, 1]), axis=1))


def collection(shapes: Mapping[str, Any], *, crs: str | None = UTM, field: str = "name") -> dict[str, Any]:
    """Return named shapes as a GeoJSON FeatureCollection."""
    features = [
        {"type": "Feature", "properties": {field: name}, "geometry": json.loads(shapely.to_geojson(shape))}
        for name, shape in shapes.items()
    ]
    return {"type": "FeatureCollection", **({} if crs is None else {"crs": crs}), "features": features}


def zones(shapes: Mapping[str, Any] = SHAPES) -> dict[str, Any]:
    """Return shapes in pixels of a scene that is `NORTH_UP` as zones of a request."""
    return collection({name: on_the_map(shape) for name, shape in shapes.items()})
