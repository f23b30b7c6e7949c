"""Zones of a request on the grid of the results: named polygons whose statistics are wanted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import shapely
from pyproj import CRS
from pyproj.exceptions import ProjError

from penstock.errors import InvalidInput, InvalidRequest, Issue
from penstock.json_body import validated
from penstock.processors.base import Media
from penstock.processors.geo.read.metadata import parse_json, read_text
from penstock.processors.geo.read.placed_polygons import (
    Ground,
    Subject,
    are_degrees,
    check_edges,
    crs_of,
    degrees_of,
    ground_of,
    inside_scene,
    place_shape,
    polygonal,
    scene_bounds,
    shape_of,
)
from penstock.processors.geo.read.raster import Scene
from penstock.processors.geo.request import SceneRequest
from penstock.processors.geo.tiling.cells import Cells
from penstock.processors.geo.tiling.coverage import STRIP_PX, Coverage, Floats, coverages
from penstock.processors.geo.tiling.plan import Box
from penstock.processors.geo.zones_request import ZoneFeature, ZonesDocument

_ZONES: Final = Subject("The document of zones", "/input/zones")
_WHAT: Final = "document of zones"
#: Positions of all zones of a document.
_MAX_POSITIONS: Final = 1_000_000
#: Pixels of the rectangles around all zones together: minutes of counting.
_MAX_PX: Final = 20_000_000_000
#: Rows of the statistics of all zones: about 130 bytes of JSON each, of the 16 MiB that a result may have.
_MAX_ROWS: Final = 100_000
#: Share of a scene's size around it beyond which a zone is cut before it is placed: far away, edges may have no place.
_AROUND: Final = 0.05
#: Names that a sentence lists, at most, and characters of a name.
_MOST_NAMED, _MOST_CHARS = 10, 200


@dataclass(frozen=True, slots=True, eq=False)
class Zone:
    """A zone in pixel coordinates."""

    name: str
    #: Its polygons inside the grid; x are columns, y are rows. Empty for a zone beside it.
    shape: Any
    #: False for a zone that goes on beyond the grid.
    whole: bool
    #: The covered shares of pixels, polygon by polygon.
    parts: tuple[Coverage, ...]

    def strips(self, most_px: int = STRIP_PX) -> Iterator[tuple[Box, Floats]]:
        """Yield boxes of the grid with the share of each pixel that the zone covers; memory does not grow with it."""
        for part in self.parts:
            yield from part.strips(most_px)

    def shares(self, box: Box) -> Floats:
        """Return float64 (rows, columns): the share of each pixel of a box that the zone covers."""
        found = np.zeros((box.height, box.width))
        for part in self.parts:
            both = part.box.clipped(box)
            if both is not None:
                at, of = both.within(box), both.within(part.box)
                rows = part.rows(both.top, both.bottom)
                found[at.top : at.bottom, at.left : at.right] += rows[:, of.left : of.right]
        return found


@dataclass(frozen=True, slots=True)
class Target:
    """A grid on which zones are placed."""

    ground: Ground
    height: int
    width: int


def read_zones(request: SceneRequest, media: Media, grid: Scene) -> tuple[Zone, ...]:
    """Return the zones of a request on the grid of its results, in their order; none for a request without zones.

    Raises `InvalidInput` for a document that is no collection of named polygons, for two zones of one name, and for a
    grid without a georeference.
    """
    if request.zones is None:
        return ()
    document, features = _document(request, media)
    names = _names(features, request.zone_name)
    subjects = [Subject(f"Zone {name!r}", f"/input/zones/features/{at}") for at, name in enumerate(names)]
    shapes = [shape_of(feature.geometry, subject) for feature, subject in zip(features, subjects, strict=True)]
    crs = crs_of(document.crs, _ZONES)
    target = Target(ground_of(grid, _ZONES), grid.height, grid.width)
    _check_degrees(shapes, subjects, crs, target.ground.crs)
    near = surroundings(grid, document.crs, crs)
    zones = tuple(place_zone(*each, crs, target, near) for each in zip(names, shapes, subjects, strict=True))
    px = sum(part.box.height * part.box.width for zone in zones for part in zone.parts)
    if px > _MAX_PX:
        raise _ZONES.error(
            f"The rectangles around the zones have {px:,} pixels together, and at most {_MAX_PX:,} are counted: give "
            "fewer or smaller zones.",
            "has too large zones",
        )
    return zones


def check_rows(zones: Sequence[Zone], rows: int) -> None:
    """Raise `InvalidInput` for zones whose statistics, with so many rows for each zone, are too long for a result."""
    if len(zones) * rows > _MAX_ROWS:
        raise _ZONES.error(
            f"The statistics of {len(zones):,} zones have {rows} rows each, one for each class and date, and all zones "
            f"together may have {_MAX_ROWS:,}: give at most {_MAX_ROWS // rows:,} zones.",
            "has too many zones",
        )


def place_zone(name: str, shape: Any, subject: Subject, crs: CRS, target: Target, near: Any | None = None) -> Zone:
    """Return a shape of a CRS as a zone of a grid. What lies outside `near` is left out before it is placed."""
    kept, whole = shape, True
    if near is not None and not shapely.covers(near, shape):
        kept, whole = polygonal(shapely.intersection(shape, near)), False
    try:
        placed = place_shape(kept, crs, target.ground, subject) if not kept.is_empty else kept
    except ProjError as error:
        raise subject.wrong("has parts without a place in the scene's CRS.") from error
    inside = inside_scene(placed, target.ground, target.height, target.width)
    inside = shapely.transform(inside, lambda xy: np.clip(xy, 0, (target.width, target.height)))  # rounding
    whole = whole and bool(placed.area - inside.area <= 1e-9 * placed.area)
    return Zone(name, inside, whole, coverages(inside))


def on_cells(zone: Zone, cells: Cells) -> Zone:
    """Return a zone on the grid of cells that covers the results."""
    moved = np.array([cells.covered.left, cells.covered.top])
    corner = np.array([cells.box.left, cells.box.top])
    shape = shapely.transform(zone.shape, lambda xy: (xy + moved) / cells.side_px - corner)
    return replace(zone, shape=shape, parts=coverages(shape))


def zone_notes(zones: Sequence[Zone]) -> list[str]:
    """Return notes on zones beside the results and on zones that go on beyond them."""
    beside = [zone.name for zone in zones if zone.shape.is_empty]
    cut = [zone.name for zone in zones if not zone.whole and not zone.shape.is_empty]
    notes = []
    if beside:
        notes.append(f"No pixel of the results lies in these zones: {_listed(beside)}.")
    if cut:
        notes.append(f"These zones go on beyond the results, and only the part inside counts: {_listed(cut)}.")
    return notes


def _document(request: SceneRequest, media: Media) -> tuple[ZonesDocument, list[ZoneFeature]]:
    given = request.zones
    if isinstance(given, str):
        document = _valid(ZonesDocument, parse_json(read_text(media.path(given), _WHAT), _WHAT), "")
    else:
        assert given is not None  # noqa: S101  (the caller has asked)
        document = given
    features, positions = [], 0
    for at, one in enumerate(document.features):
        feature = _valid(ZoneFeature, one, f"/features/{at}")
        parts = [feature.geometry.coordinates] if feature.geometry.type == "Polygon" else feature.geometry.coordinates
        positions += sum(len(ring) for rings in parts for ring in rings)
        if positions > _MAX_POSITIONS:
            raise _ZONES.wrong(f"has more than {_MAX_POSITIONS:,} positions: simplify the polygons.", "is too large")
        features.append(feature)
    return document, features


def _valid(model: Any, value: Any, place: str) -> Any:
    try:
        return validated(model, value)
    except InvalidRequest as error:
        first = error.errors[0]
        raise InvalidInput(
            f"The document of zones is not a GeoJSON FeatureCollection of polygons: {place}{first.pointer} "
            f"{first.detail}.",
            errors=[Issue(_ZONES.pointer + place + issue.pointer, issue.detail) for issue in error.errors],
        ) from error


def _names(features: Sequence[ZoneFeature], field: str) -> list[str]:
    """Return the names; raise `InvalidInput` for features without one, and for names that occur twice."""
    names = [feature.name(field) for feature in features]
    unnamed = [at for at, name in enumerate(names) if name is None]
    if unnamed:
        has = sorted({key for feature in features for key in feature.properties or {}})
        listed = f"its properties are {_listed(has)}" if has else "it has no properties"
        raise InvalidInput(
            f"Feature {unnamed[0] + 1} of the zones has no name in its property {field!r} ({len(unnamed)} of "
            f"{len(names)} have none); {listed}. Give the property with the names as `zone_name`.",
            errors=[Issue(f"/input/zones/features/{at}", f"has no name in {field!r}") for at in unnamed[:_MOST_NAMED]],
        )
    found = [str(name)[:_MOST_CHARS] for name in names]
    twice = [name for name, count in Counter(found).items() if count > 1]
    if twice:
        raise _ZONES.error(
            f"Several zones have the same name: {_listed(twice)}. Give zones of one name as one MultiPolygon, or "
            "another property as `zone_name`.",
            "has several features of one name",
        )
    return found


def _check_degrees(shapes: Sequence[Any], subjects: Sequence[Subject], crs: CRS, of_scene: CRS) -> None:
    """Raise `InvalidInput` for coordinates that cannot be those of a geographic CRS."""
    if not crs.is_geographic:
        return
    if not are_degrees(shapely.total_bounds(shapes), crs):
        code = ":".join(of_scene.to_authority() or ("EPSG", "CODE"))
        raise _ZONES.error(
            f'The coordinates of the zones are not degrees. Give their `crs` in the document: "crs": "{code}" if '
            "they are in the scene's CRS.",
            "is not the CRS of the coordinates",
            "/crs",
        )
    for shape, subject in zip(shapes, subjects, strict=True):
        check_edges(shape, degrees_of(crs), subject)


def surroundings(grid: Scene, code: str, crs: CRS) -> Any | None:
    """Return the surroundings of a grid in a CRS, as a shape; None where they are unknown."""
    ends = scene_bounds(grid, code)
    if ends is None or not np.isfinite(ends).all():
        return None
    west, south, east, north = ends
    turn = 360 / degrees_of(crs) if crs.is_geographic else 0
    east += turn if west > east else 0  # across the antimeridian
    wide, high = _AROUND * (east - west), _AROUND * (north - south)
    steps = (-turn, 0, turn) if turn else (0,)
    boxes = [shapely.box(west + by - wide, south - high, east + by + wide, north + high) for by in steps]
    near = shapely.union_all(boxes)
    shapely.prepare(near)
    return near


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
