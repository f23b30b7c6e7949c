"""Polygons of a class raster as FlatGeobuf (in the scene's CRS) and GeoJSON (RFC 7946, EPSG:4326)."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import shapely

from penstock.processors.geo.options import ClassLabel
from penstock.processors.geo.read.gdal import pyogrio
from penstock.processors.geo.read.raster import Scene
from penstock.processors.geo.request import PolygonRequest
from penstock.processors.geo.write.area import PixelArea
from penstock.processors.geo.write.lonlat import Geometries, NoLonLat, ToLonLat, in_the_crs
from penstock.processors.geo.write.outlines import TooRagged, outlines

FLATGEOBUF_TYPE = "application/vnd.flatgeobuf"
GEOJSON_TYPE = "application/geo+json"
#: Limits of polygons and points in memory (40 bytes per point), because FlatGeobuf is sorted spatially before writing.
_MAX_POLYGONS, _MAX_POINTS = 1_000_000, 10_000_000
#: Maximum length of a straight GeoJSON segment, in pixels of the scene.
_STEP_PX = 16
#: Maximum deviation of a GeoJSON segment from the line in the scene's CRS, in pixels.
_BEND_PX = 0.002
#: GeoJSON features per chunk.
_CHUNK = 10_000

#: Function from pixel corners (rows, columns) to the summed weight of all pixels above and to the left.
Above = Callable[[npt.NDArray[np.int64], npt.NDArray[np.int64]], npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Polygons:
    """Polygons of one class each, as arrays of equal length."""

    #: Class ids.
    classes: npt.NDArray[np.int64]
    #: Polygons in pixel coordinates from the scene's upper left corner.
    shapes: Geometries
    pixels: npt.NDArray[np.int64]
    #: Area in m²; NaN if unknown.
    area_m2: npt.NDArray[np.float64]
    #: Number of polygons below the minimum size.
    dropped: int


def find_polygons(
    raster: Path, area: PixelArea | None, request: PolygonRequest, *, without: int | None = None
) -> Polygons:
    """Return the polygons of a uint8 class raster with their pixel counts and areas, `without` those of one class.

    Raises `TooRagged` for too many polygons or points.
    """
    kept: list[Polygons] = []
    dropped = points = 0
    for every in outlines(raster):
        found = every if without is None else every.of(every.classes != without)
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
                f"The limit is {_MAX_POLYGONS:,} polygons or {_MAX_POINTS:,} points. Omit small polygons with "
                "`polygons.min_pixels`."
            )
    shapes = np.concatenate([part.shapes for part in kept])
    if request.simplify_px:
        shapes = shapely.simplify(shapes, request.simplify_px)
    classes, pixels, square_metres = (
        np.concatenate([getattr(part, name) for part in kept]) for name in ("classes", "pixels", "area_m2")
    )
    return Polygons(classes, shapes, pixels, square_metres, dropped)


def write_flatgeobuf(path: Path, layer: str, polygons: Polygons, scene: Scene, labels: Sequence[ClassLabel]) -> None:
    """Write a FlatGeobuf in the scene's CRS and coordinates, with a spatial index. The scene must have a transform."""
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
            layer=layer,
            driver="FlatGeobuf",
            geometry_type="Polygon",
            crs=scene.crs.to_wkt() if scene.crs else None,
        )


def write_geojson(path: Path, polygons: Polygons, scene: Scene, labels: Sequence[ClassLabel]) -> None:
    """Write GeoJSON by RFC 7946. Raises `NoLonLat` if the scene's CRS has no longitudes and latitudes."""
    write_features(path, _features(polygons, scene, labels))


def write_features(path: Path, features: Iterable[tuple[str, str]], head: str = "") -> None:
    """Write a feature collection of (properties, geometry) as JSON texts; `head` are further members, with commas."""
    with path.open("w") as file:
        file.write(f'{{"type": "FeatureCollection", {head}"features": [')
        between = "\n"
        for properties, geometry in features:
            file.write(f'{between}{{"type": "Feature", "properties": {properties}, "geometry": {geometry}}}')
            between = ",\n"
        file.write("\n]}\n")


def lonlat_of(scene: Scene) -> Callable[[Geometries], Geometries]:
    """Return the function from polygons in pixels to EPSG:4326, as RFC 7946 asks.

    It and this function raise `NoLonLat` if the scene has no longitudes and latitudes.
    """
    if scene.transform is None:
        raise NoLonLat("the scene has no geotransform")
    side = pixel_side(scene.transform)
    to_lonlat = ToLonLat(scene.crs, _STEP_PX * side, _BEND_PX * side)
    return lambda shapes: to_lonlat.polygons(in_the_crs(shapes, scene.transform))


def _features(polygons: Polygons, scene: Scene, labels: Sequence[ClassLabel]) -> Iterator[tuple[str, str]]:
    placed = lonlat_of(scene)
    for start in range(0, len(polygons.classes), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        geometries = shapely.to_geojson(placed(polygons.shapes[chunk]))
        yield from zip(_properties(polygons, chunk, labels), geometries, strict=True)


def pixel_side(transform: Any) -> float:
    """Return the length of the shorter side of a pixel in the CRS's unit."""
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
    """Return the integral of a weight over each polygon; `above(y, x)` is the sum above and to the left of a corner.

    By Green's theorem it is the sum over vertical edges of the differences between their ends.
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
