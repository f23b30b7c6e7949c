"""Polygons of a class raster as FlatGeobuf (in the scene's CRS) and as GeoJSON (RFC 7946: EPSG:4326)."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import shapely

from penstock.processors.geo.area import PixelArea
from penstock.processors.geo.gdal import pyogrio
from penstock.processors.geo.lonlat import Geometries, ToLonLat, in_the_crs
from penstock.processors.geo.options import ClassLabel
from penstock.processors.geo.outlines import TooRagged, outlines
from penstock.processors.geo.raster import Scene
from penstock.processors.geo.request import PolygonRequest

FLATGEOBUF_TYPE = "application/vnd.flatgeobuf"
GEOJSON_TYPE = "application/geo+json"
#: A FlatGeobuf is sorted by place before it is written, so all polygons are held: 40 bytes for a point.
_MAX_POLYGONS, _MAX_POINTS = 1_000_000, 10_000_000
#: How many pixels a line may go straight on in the scene's CRS before it gets another point in GeoJSON.
_STEP_PX = 16
#: How far from that line GeoJSON's may lie there.
_BEND_PX = 0.002
#: How many features of GeoJSON are made at a time.
_CHUNK = 10_000

#: From rows and columns of corners of pixels to a weight of what lies above and to the left of them.
Above = Callable[[npt.NDArray[np.int64], npt.NDArray[np.int64]], npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Polygons:
    """Polygons of pixels of one class each, in arrays of one length."""

    #: The class's id.
    classes: npt.NDArray[np.int64]
    #: In pixels from the scene's upper left corner.
    shapes: Geometries
    pixels: npt.NDArray[np.int64]
    #: NaN where nobody knows.
    area_m2: npt.NDArray[np.float64]
    #: How many were too small to keep.
    dropped: int


def find_polygons(raster: Path, area: PixelArea | None, request: PolygonRequest) -> Polygons:
    """Return the polygons of a uint8 class raster, each with its pixels and its area.

    Raises `TooRagged` when they are too many to be held.
    """
    kept: list[Polygons] = []
    dropped = points = 0
    for found in outlines(raster):
        pixels = np.rint(_integrals(found.polygons, np.multiply)).astype(np.int64)
        large = pixels >= request.min_pixels
        dropped += int((~large).sum())
        some = found.polygons[large]
        kept.append(
            Polygons(found.classes[large], some, pixels[large], _integrals(some, area.above if area else _unknown), 0)
        )
        points += int(shapely.get_num_coordinates(some).sum())
        if points > _MAX_POINTS or sum(len(part.pixels) for part in kept) > _MAX_POLYGONS:
            raise TooRagged(
                f"There are more than {_MAX_POLYGONS:,}, or {_MAX_POINTS:,} points. Ask for larger ones only, with "
                "`polygons.min_pixels`."
            )
    shapes = np.concatenate([part.shapes for part in kept])
    if request.simplify_px:
        shapes = shapely.simplify(shapes, request.simplify_px)
    classes, pixels, square_metres = (
        np.concatenate([getattr(part, name) for part in kept]) for name in ("classes", "pixels", "area_m2")
    )
    return Polygons(classes, shapes, pixels, square_metres, dropped)


def write_flatgeobuf(path: Path, polygons: Polygons, scene: Scene, labels: Sequence[ClassLabel]) -> None:
    """Write a FlatGeobuf in the scene's CRS and coordinates, with an index by place. The scene has a transform."""
    names = np.array([label.name for label in labels], dtype=object)[polygons.classes]
    fields = {"class": polygons.classes.astype(np.int32), "name": names, "pixels": polygons.pixels}
    if not np.isnan(polygons.area_m2).any():
        fields["area_m2"] = np.round(polygons.area_m2, 3)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'crs' was not provided")  # a scene may have none
        pyogrio.raw.write(
            path,
            shapely.to_wkb(in_the_crs(polygons.shapes, scene.transform)),
            list(fields.values()),
            list(fields),
            layer="polygons",
            driver="FlatGeobuf",
            geometry_type="Polygon",
            crs=scene.crs.to_wkt() if scene.crs else None,
        )


def write_geojson(path: Path, polygons: Polygons, scene: Scene, labels: Sequence[ClassLabel]) -> None:
    """Write GeoJSON by RFC 7946. Raises `Unplaceable` where the scene's CRS has no longitudes and latitudes."""
    side = pixel_side(scene.transform)
    to_lonlat = ToLonLat(scene.crs, _STEP_PX * side, _BEND_PX * side)
    with path.open("w") as file:
        file.write('{"type": "FeatureCollection", "features": [')
        between = "\n"
        for start in range(0, len(polygons.classes), _CHUNK):
            chunk = slice(start, start + _CHUNK)
            geometries = to_lonlat.polygons(in_the_crs(polygons.shapes[chunk], scene.transform))
            for properties, geometry in zip(
                _properties(polygons, chunk, labels), shapely.to_geojson(geometries), strict=True
            ):
                file.write(f'{between}{{"type": "Feature", "properties": {properties}, "geometry": {geometry}}}')
                between = ",\n"
        file.write("\n]}\n")


def pixel_side(transform: Any) -> float:
    """Return the shorter side of a pixel in the CRS's unit."""
    a, b, _, d, e, _ = tuple(transform)[:6]
    return min(math.hypot(a, d), math.hypot(b, e))


def _properties(polygons: Polygons, chunk: slice, labels: Sequence[ClassLabel]) -> Iterator[str]:
    rows = zip(polygons.classes[chunk].tolist(), polygons.pixels[chunk], polygons.area_m2[chunk].tolist(), strict=True)
    for class_id, pixels, area_m2 in rows:
        values = {"class": class_id, "name": labels[class_id].name, "pixels": int(pixels)}
        if not np.isnan(area_m2):
            values["area_m2"] = round(area_m2, 3)
        yield json.dumps(values, ensure_ascii=False)


def _unknown(rows: npt.NDArray[np.int64], _: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return np.full(rows.shape, np.nan)


def _integrals(shapes: Geometries, above: Above) -> npt.NDArray[np.float64]:
    """Return each polygon's integral of a weight: `above(y, x)` is that of all that lies above and to the left.

    Green's theorem: the sum over vertical edges of the differences between their ends.
    """
    rings, owners = shapely.get_rings(shapes, return_index=True)
    xy, ring = shapely.get_coordinates(rings, return_index=True)
    if not len(xy):
        return np.empty(0)
    x, y = xy.astype(np.int64).T
    down = np.flatnonzero((ring[1:] == ring[:-1]) & (x[1:] == x[:-1]))
    parts = above(y[down + 1], x[down]) - above(y[down], x[down])
    sums = np.bincount(ring[down], parts, len(rings))
    outside = np.diff(owners, prepend=-1) != 0
    signed = np.where(outside, np.abs(sums), -np.abs(sums))
    return np.asarray(np.bincount(owners, signed, len(shapes)), dtype=np.float64)
