"""The area of a search: GeoJSON in EPSG:4326, its named polygons, and the test of an item's footprint against them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import cql2

from penstock.errors import InvalidRequest, Issue
from penstock.json_body import validated

#: Codes of the CRS of an area: degrees, longitude first.
_DEGREES = frozenset({"EPSG:4326", "OGC:CRS84"})


#: Pairs of edges of a polygon that are compared: a second's work, which only polygons of many long edges reach.
_MOST_COMPARED = 1_000_000
_Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class NamedPolygon:
    """A polygon of an area, and its name."""

    name: str
    geometry: Mapping[str, Any]


def named_polygons(area: Mapping[str, Any], *, place: str = "/area") -> tuple[NamedPolygon, ...]:
    """Return the polygons of an area: a polygon, a feature, a collection of features, or a `bbox` or `geometry`.

    The name of a feature is its property `name`, else its id, else `area 1`, `area 2` and so on. Raises
    `InvalidRequest`, pointing below `place`, for anything else, for another CRS, and for two polygons of one name.
    """
    from penstock.processors.geo.area_request import AreaRequest  # here: the API starts without processors

    try:
        request = validated(AreaRequest, area)
    except InvalidRequest as error:
        raise InvalidRequest(errors=[Issue(place + issue.pointer, issue.detail) for issue in error.errors]) from error
    if request.crs.upper() not in _DEGREES:
        raise InvalidRequest(errors=[Issue(f"{place}/crs", "must be EPSG:4326: catalogues are searched in degrees")])
    given = [each.model_dump() for each in request.geometries]
    geometries: list[Mapping[str, Any]] = [*given] if request.bbox is None else [_rectangle(request.bbox)]
    names = _names(area, len(geometries))
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidRequest(errors=[Issue(place, f"has two polygons named {twice!r}")])
    return tuple(map(NamedPolygon, names, geometries))


def check_degrees(polygons: Sequence[NamedPolygon], *, place: str = "/area") -> None:
    """Raise `InvalidRequest`, pointing to `place`, for polygons for which no catalogue and no job has results.

    A position beyond the degrees of the earth, an open ring, or edges that cross: subscriptions of older releases have
    such polygons, so `named_polygons` returns them.
    """
    for polygon in polygons:
        if (wrong := _wrong_with(polygon.geometry, _MOST_COMPARED // len(polygons))) is not None:
            raise InvalidRequest(errors=[Issue(place, f"{wrong} ({polygon.name})")])


def polygons_of(geometry: Mapping[str, Any]) -> Sequence[Any]:
    """Return the rings of each polygon of a GeoJSON polygon or multipolygon."""
    coordinates: Sequence[Any] = geometry["coordinates"]
    return [coordinates] if geometry["type"] == "Polygon" else coordinates


def _wrong_with(geometry: Mapping[str, Any], most_compared: int) -> str | None:
    rings = [[(point[0], point[1]) for point in ring] for part in polygons_of(geometry) for ring in part]
    for x, y in chain(*rings):
        if abs(x) > 180:
            return f"has the longitude {x:.10g}: write degrees from -180 to 180, of an area across 180 in two polygons"
        if abs(y) > 90:
            return f"has the latitude {y:.10g}: write degrees from -90 to 90, after the longitude"
    if any(ring[0] != ring[-1] for ring in rings):
        return "has a ring that is not closed: its last position must repeat the first"
    crossing = _crossing(rings, most_compared)
    return None if crossing is None else "has edges that cross, such as that from {:.10g}, {:.10g}".format(*crossing)


def _crossing(rings: Sequence[Sequence[_Point]], most_compared: int) -> _Point | None:
    """Return the western end of an edge that crosses another one; None also after so many pairs of edges."""
    edges = sorted((min(ends), max(ends)) for ring in rings for ends in pairwise(ring))
    beside, compared = list[tuple[_Point, _Point]](), 0
    for west, east in edges:
        beside = [edge for edge in beside if edge[1][0] >= west[0]]
        compared += len(beside)
        if compared > most_compared:
            return None
        if any(_side(*edge, west) * _side(*edge, east) < 0 > _side(west, east, edge[0]) * _side(west, east, edge[1])
               for edge in beside):  # fmt: skip
            return west
        beside.append((west, east))
    return None


def _side(start: _Point, end: _Point, point: _Point) -> float:
    """Return a number above 0 for a point on the left of a line, below 0 on its right, and 0 on it."""
    return (end[0] - start[0]) * (point[1] - start[1]) - (end[1] - start[1]) * (point[0] - start[0])


def overlaps(polygons: Sequence[NamedPolygon], footprint: Any) -> bool:
    """Return True if a GeoJSON footprint overlaps or touches one of the polygons; False for one that is no geometry."""
    if not isinstance(footprint, Mapping):
        return False
    shape = {name: footprint.get(name) for name in ("type", "coordinates")}
    try:
        return any(_intersects(polygon.geometry, shape) for polygon in polygons)
    except Exception:  # the library raises its own errors without a common base
        return False


def _intersects(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return bool(cql2.Expr({"op": "s_intersects", "args": [{"property": "geometry"}, one]}).matches({"geometry": other}))


def _rectangle(bbox: Sequence[float]) -> Mapping[str, Any]:
    west, south, east, north = bbox
    if west <= east:
        return {"type": "Polygon", "coordinates": [_ring(west, south, east, north)]}
    halves = [[_ring(west, south, 180.0, north)], [_ring(-180.0, south, east, north)]]
    return {"type": "MultiPolygon", "coordinates": halves}


def _ring(west: float, south: float, east: float, north: float) -> list[list[float]]:
    return [[west, south], [east, south], [east, north], [west, north], [west, south]]


def _names(area: Mapping[str, Any], count: int) -> list[str]:
    features = area.get("features") if area.get("type") == "FeatureCollection" else [area]
    listed = features if isinstance(features, list) else []
    names = []
    for number in range(1, count + 1):
        feature = listed[number - 1] if number <= len(listed) and isinstance(listed[number - 1], Mapping) else {}
        properties = feature.get("properties")
        given = properties.get("name") if isinstance(properties, Mapping) else None
        name = given if given is not None else feature.get("id")
        names.append(str(name)[:100] if isinstance(name, str | int) else f"area {number}")
    return names
