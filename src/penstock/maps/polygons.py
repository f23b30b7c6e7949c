"""Polygons of a FlatGeobuf in the object store: pages of GeoJSON features, read by ranges through its spatial index."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import numpy as np
import shapely
from pyogrio.errors import DataLayerError, DataSourceError, FeatureError
from pyproj import CRS, Transformer

from penstock.errors import FetchFailed, MediaUnreadable, RequestError, UnknownArtifact
from penstock.maps.gdal import REMOTE
from penstock.processors.geo.read.gdal import pyogrio
from penstock.processors.geo.write.lonlat import NoLonLat, ToLonLat, lonlat_bounds

#: Features of a page, at most, and where a request names no number.
MOST_FEATURES, USUAL_FEATURES = 1_000, 100
#: Points of a page, at most: 40 MB of JSON.
_MOST_POINTS = 1_000_000
#: Longest straight line of a feature and its largest deviation from the line in the file, in units of the file's CRS.
_STEP, _BEND = 500.0, 0.02
#: Degrees between two points of the sides of a filter's box.
_SIDE_STEP = 0.01
#: Degrees around the polygons within which a filter's box counts.
_MARGIN = 1e-4
_MAGIC = b"fgb\x03"

Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Page:
    """Features as JSON-ready data, and True where more follow."""

    features: list[dict[str, Any]]
    more: bool


@dataclass(frozen=True, slots=True)
class About:
    """The number of polygons, and west, south, east and north of all in degrees; None for none."""

    count: int
    bounds: Box | None


def prepare() -> None:
    """Set GDAL's options for files on the web, in the whole process."""
    pyogrio.set_gdal_config_options(dict(REMOTE))


def about(url: str) -> About:
    """Return the number and the bounds of a file's polygons. Raises the errors of `page`, but for `RequestError`."""
    with _reading(url) as path:
        info = pyogrio.read_info(path, force_feature_count=True, force_total_bounds=True)
        if not info["features"]:
            return About(0, None)
        outline = _to_lonlat(info["crs"]).polygons(np.array([shapely.box(*info["total_bounds"])]))[0]
        return About(info["features"], lonlat_bounds(outline))


def page(url: str, *, offset: int = 0, limit: int = USUAL_FEATURES, box: Box | None = None) -> Page:
    """Return the polygons that meet a box (west, south, east, north in degrees), in the order of the file.

    A box whose west is greater than its east crosses the antimeridian. Raises `RequestError` for a page of too many
    points, `MediaUnreadable` for a file that is no FlatGeobuf with a CRS, `UnknownArtifact` for one that was deleted,
    and `FetchFailed` where the store does not answer.
    """
    with _reading(url) as path:
        mask = None if box is None else _mask(path, box)
        if mask is not None and mask.is_empty:
            return Page([], more=False)
        found = pyogrio.raw.read(path, skip_features=offset, max_features=limit + 1, mask=mask, return_fids=True)
        return Page(_features(found, limit), more=len(found[1]) > limit)


def one(url: str, number: int) -> dict[str, Any] | None:
    """Return the polygon of an id; None without one. Raises the errors of `page`."""
    with _reading(url) as path:
        try:
            found = pyogrio.raw.read(path, fids=[number], return_fids=True)
        except FeatureError:
            return None
        return next(iter(_features(found, 1)), None)


def _features(found: Any, limit: int) -> list[dict[str, Any]]:
    """Return GeoJSON features of what pyogrio read, `limit` at most."""
    meta, fids, wkb, columns = found
    shapes = shapely.from_wkb(wkb[:limit])
    if shapely.get_num_coordinates(shapes).sum() > _MOST_POINTS:
        raise RequestError(f"the polygons have more than {_MOST_POINTS:,} points: ask for fewer (limit)")
    geometries = shapely.to_geojson(_to_lonlat(meta["crs"]).polygons(shapes)) if len(shapes) else []
    rows = zip(*(column[:limit].tolist() for column in columns), strict=True)
    return [
        {
            "type": "Feature",
            "id": int(fid),
            "properties": dict(zip(meta["fields"].tolist(), row, strict=True)),
            "geometry": json.loads(geometry),
        }
        for fid, geometry, row in zip(fids, geometries, rows, strict=False)
    ]


def _to_lonlat(crs: str | None) -> ToLonLat:
    return ToLonLat(None if crs is None else CRS.from_user_input(crs), _STEP, _BEND)


def _mask(path: str, box: Box) -> Any:
    """Return the part of a box that the polygons may meet, as a shape of the file's CRS; None for all of the polygons.

    The whole world has no place in most coordinate systems, but the part of it with the polygons has.
    """
    info = pyogrio.read_info(path, force_total_bounds=True)
    to_lonlat, around = _to_lonlat(info["crs"]), shapely.box(*info["total_bounds"])
    bounds = shapely.buffer(_spans(lonlat_bounds(to_lonlat.polygons(np.array([around]))[0])), _MARGIN)
    wanted = shapely.intersection(_spans(box), bounds)
    if shapely.covers(wanted, bounds):
        return None
    to_crs = Transformer.from_crs(CRS.from_epsg(4326), CRS.from_user_input(info["crs"]), always_xy=True)
    return shapely.transform(
        shapely.segmentize(wanted, _SIDE_STEP), lambda xy: np.stack(to_crs.transform(*xy.T), axis=1)
    )


def _spans(box: Box) -> Any:
    """Return a box of longitudes and latitudes as a shape: two boxes where it crosses the antimeridian."""
    west, south, east, north = box
    spans = [(west, east)] if west <= east else [(west, 180.0), (-180.0, east)]
    return shapely.union_all([shapely.box(left, south, right, north) for left, right in spans])


def _require_flatgeobuf(url: str) -> None:
    try:
        with httpx2.stream("GET", url, headers={"Range": "bytes=0-7"}, timeout=20) as answer:
            status, start = answer.status_code, next(answer.iter_bytes(8), b"")
    except httpx2.HTTPError as error:
        raise FetchFailed("the object store does not answer") from error
    if status == 404:
        raise UnknownArtifact("the file no longer exists")
    if status not in (200, 206):
        raise FetchFailed("the object store did not send the polygons")
    if not start.startswith(_MAGIC):
        raise MediaUnreadable("The file of polygons is no FlatGeobuf.")


@contextmanager
def _reading(url: str) -> Iterator[str]:
    """Yield the path of a FlatGeobuf for GDAL, and translate the errors."""
    _require_flatgeobuf(url)
    try:
        yield f"/vsicurl/{url}"
    except NoLonLat as error:
        raise MediaUnreadable(f"The polygons have no longitudes and latitudes: {error}.") from error
    except (DataSourceError, DataLayerError) as error:
        raise FetchFailed("the polygons could not be read from the object store") from error
