"""Polygons of a class raster, strip by strip, none of them cut where strips meet.

GDAL makes the polygons of one strip. Those that touch its edge wait, linked with those that they share a class and an
edge with in the next strip, until a whole group lies behind: then it is joined to one polygon. Held are one strip and
the groups that are still open.

Regions are 4-connected: pixels that meet at a corner only belong to two polygons, and so every polygon is valid and
the polygons of all classes cover the map without a gap or an overlap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import shapely

from penstock.processors.geo.options import NODATA
from penstock.processors.geo.read.gdal import rasterio, without_georeference
from penstock.processors.geo.write.lonlat import Coordinates, Geometries

#: A strip is about as many pixels.
_STRIP_PX = 4 * 2**20
#: Points where classes meet in a corner: a quarter of a strip's. GDAL holds its polygons, at most as many as these, and
#: takes about half a kilobyte for a small one.
_MAX_STRIP_CORNERS = 1_000_000
_NONE = -1


class TooRagged(Exception):
    """The map consists of more polygons than are useful."""


@dataclass(frozen=True, slots=True)
class Outlines:
    """Some finished polygons."""

    #: int64: the class of each.
    classes: npt.NDArray[np.int64]
    #: In pixels from the raster's upper left corner; x are columns, y are rows.
    polygons: Geometries

    def of(self, chosen: npt.NDArray[np.bool_]) -> Outlines:
        """Return the chosen polygons."""
        return Outlines(self.classes[chosen], self.polygons[chosen])


def outlines(raster: Path, *, strip_rows: int | None = None) -> Iterator[Outlines]:
    """Yield the polygons of a uint8 class raster, nodata left out, in an order that depends on the raster alone.

    Raises `TooRagged` where a strip is all corners: such a map is noise.
    """
    with without_georeference(), rasterio.open(raster, driver="GTiff") as dataset:
        height, width = dataset.shape
        rows = strip_rows or max(16, _STRIP_PX // width)
        seams = _Seams(width)
        for top in range(0, height, rows):
            bottom = min(top + rows, height)
            ids = dataset.read(1, window=rasterio.windows.Window(0, top, width, bottom - top))
            yield from seams.join(ids, top, last=bottom == height)


def _corners(ids: npt.NDArray[np.uint8]) -> int:
    """Return how many points have neither one class around them nor two that meet in a straight line."""
    across, down = ids[:, 1:] != ids[:, :-1], ids[1:] != ids[:-1]
    straight = (~across[1:] & ~across[:-1]) | (~down[:, 1:] & ~down[:, :-1])
    return int(straight.size - np.count_nonzero(straight))


def _strip(ids: npt.NDArray[np.uint8], top: int) -> Outlines:
    if (ids == NODATA).all():
        return Outlines(np.empty(0, np.int64), np.empty(0, object))
    if _corners(ids) > _MAX_STRIP_CORNERS:
        raise TooRagged(f"The map is noise around row {top}: nearly every pixel is a polygon of its own.")
    shapes = rasterio.features.shapes(
        ids, mask=ids != NODATA, connectivity=4, transform=rasterio.Affine.translation(0, top)
    )
    classes: list[int] = []
    rings: list[Coordinates] = []
    owners: list[int] = []
    for shape, value in shapes:
        owners += [len(classes)] * len(shape["coordinates"])
        rings += [np.array(ring) for ring in shape["coordinates"]]
        classes.append(int(value))
    lengths = [len(ring) for ring in rings]
    lines = shapely.linearrings(np.concatenate(rings), indices=np.repeat(np.arange(len(rings)), lengths))
    return Outlines(np.array(classes), shapely.polygons(lines, indices=np.array(owners)))


@dataclass(slots=True)
class _Group:
    """Pieces of one region, from several strips."""

    id: int
    #: Their outsides, as polygons.
    shells: list[Any]
    #: Their holes, as rings: each lies within its strip, so joining pieces does not change it.
    holes: list[Any]


@dataclass(slots=True)
class _Seams:
    """The open groups at the edge between the last strip and the next."""

    width: int
    #: Class and group of each column in the last strip's last row.
    classes: npt.NDArray[np.uint8] = field(init=False)
    groups: npt.NDArray[np.int64] = field(init=False)
    open: dict[int, _Group] = field(default_factory=dict)
    count: int = 0

    def __post_init__(self) -> None:
        self.classes = np.full(self.width, NODATA, np.uint8)
        self.groups = np.full(self.width, _NONE, np.int64)

    def join(self, ids: npt.NDArray[np.uint8], top: int, *, last: bool) -> Iterator[Outlines]:
        """Take the next strip; yield the polygons that no later strip can add to."""
        strip, bottom = _strip(ids, top), top + len(ids)
        _, low, _, high = shapely.bounds(strip.polygons).reshape(-1, 4).T
        waiting = (low == top) | (high == bottom)
        yield Outlines(strip.classes[~waiting], strip.polygons[~waiting])
        above, below = (np.full(self.width, _NONE, np.int64) for _ in range(2))
        for class_id, piece in zip(strip.classes[waiting].tolist(), strip.polygons[waiting], strict=True):
            self.count += 1
            shell, *holes = shapely.get_rings(piece)
            xy = shapely.get_coordinates(shell)
            self.open[self.count] = _Group(class_id, [_by_pixels(xy, top, bottom)], holes)
            _mark(above, xy, top, self.count)
            _mark(below, xy, bottom, self.count)
        same = (self.classes == ids[0]) & (ids[0] != NODATA)
        names = self._link(self.groups[same], above[same])
        self.classes, self.groups = ids[-1], np.array([names.get(name, name) for name in below.tolist()])
        yield self._finished(set() if last else set(self.groups.tolist()))

    def _link(self, upper: npt.NDArray[np.int64], lower: npt.NDArray[np.int64]) -> dict[int, int]:
        """Merge the groups that meet; return the new name of each merged group."""
        names: dict[int, int] = {}

        def name(group: int) -> int:
            while group in names:
                group = names[group]
            return group

        for pair in np.unique(np.stack([upper, lower], axis=1), axis=0).tolist():
            first, second = sorted(map(name, pair))
            if first != second:
                into, other = self.open[first], self.open.pop(second)
                into.shells += other.shells
                into.holes += other.holes
                names[second] = first
        return {group: name(group) for group in names}

    def _finished(self, reaching: set[int]) -> Outlines:
        done = [self.open.pop(group) for group in sorted(set(self.open) - reaching)]
        polygons = np.array([_joined(group) for group in done], dtype=object)
        return Outlines(np.array([group.id for group in done], dtype=np.int64), polygons)


def _by_pixels(ring: Coordinates, top: int, bottom: int) -> Any:
    """Return a shell with a point at each pixel of its way along a strip's edges: neighbours share whole segments."""
    way = np.diff(ring, axis=0)
    along = (way[:, 1] == 0) & np.isin(ring[:-1, 1], (top, bottom))
    parts = np.where(along, np.abs(way[:, 0]), 1).astype(int)
    nth = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    points = np.repeat(ring[:-1], parts, axis=0) + nth[:, None] * np.repeat(np.sign(way), parts, axis=0)
    return shapely.Polygon(np.vstack([points, points[:1]]))


def _joined(group: _Group) -> Any:
    """Return a group as one polygon, without points on straight lines."""
    outside, *holes = shapely.get_rings(shapely.coverage_union_all(group.shells))
    rings = [_straightened(shapely.get_coordinates(ring)[:-1]) for ring in (outside, *holes)]
    return shapely.Polygon(rings[0], [*rings[1:], *group.holes])


def _straightened(ring: Coordinates) -> Coordinates:
    """Return the corners of an open ring of lines along the axes."""
    before, after = np.roll(ring, 1, axis=0), np.roll(ring, -1, axis=0)
    corners: Coordinates = ring[~((before == ring) & (ring == after)).any(axis=1)]
    return corners


def _mark(row: npt.NDArray[np.int64], ring: Coordinates, y: int, group: int) -> None:
    """Write a group's number where its ring runs along `y`."""
    along = np.flatnonzero((ring[:-1, 1] == y) & (ring[1:, 1] == y))
    for start, end in np.sort(np.stack([ring[along, 0], ring[along + 1, 0]], axis=1), axis=1).astype(int).tolist():
        row[start:end] = group
