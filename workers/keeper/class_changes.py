"""Areas of classes, and their change between two class maps, in each polygon of an area.

The only module of the keeper that reads rasters: class maps that workers wrote. It needs the extra `geo`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from affine import Affine
from pyproj import CRS

from penstock.errors import InvalidInput
from penstock.intake.change_condition import Condition, Quantity
from penstock.intake.item_area import NamedPolygon
from penstock.processors.geo.area_request import AreaRequest
from penstock.processors.geo.options import NODATA
from penstock.processors.geo.read.gdal import Resampling, rasterio
from penstock.processors.geo.read.placed_polygons import Subject, ground_of_map, shape_of
from penstock.processors.geo.read.zones import Target, Zone, place_zone, surroundings
from penstock.processors.geo.tiling.plan import Box
from penstock.processors.geo.write.area import pixel_area

#: Pixels of a strip: memory does not grow with the maps.
_STRIP_PX = 2**22
#: CRS of the polygons.
_DEGREES = CRS.from_epsg(4326)

Ids = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PolygonChange:
    """The quantities of one polygon in m², and the area of the pixels that count."""

    name: str
    quantities: Mapping[Quantity, float]
    counted_m2: float


@dataclass(frozen=True, slots=True)
class ClassMap:
    """A class map: a GeoTIFF of uint8 class ids, 255 where there is no data, and the id of each class by its name."""

    path: Path
    ids: Mapping[str, int]

    def numbers(self, names: Sequence[str]) -> list[int]:
        """Return the ids of classes; raise `InvalidInput` that lists the map's classes for an unknown name."""
        known = {name.casefold(): number for name, number in self.ids.items()}
        unknown = [name for name in names if name.casefold() not in known]
        if unknown:
            raise InvalidInput(f"the map has no class {unknown[0]!r}; its classes are {', '.join(self.ids)}")
        return [known[name.casefold()] for name in names]


def changes(
    condition: Condition, after: ClassMap, before: ClassMap | None, polygons: Sequence[NamedPolygon]
) -> list[PolygonChange]:
    """Return the quantities of a condition in each polygon; without polygons, those of the whole map.

    The earlier map is taken pixel by pixel on the grid of the later one (nearest neighbour). Without it, nothing is
    gained or lost. Areas are geodesic, and a pixel counts by the share of it that a polygon covers, as in the zones of
    jobs. Raises `InvalidInput` for a map without a usable
    georeference, and for classes that it does not have.
    """
    tally = _Tally(condition, after, before, len(polygons) or 1)
    with ExitStack() as stack:
        file = stack.enter_context(rasterio.open(after.path, driver="GTiff"))
        area = pixel_area(file.crs, file.transform, file.height, file.width)
        if area is None:
            raise InvalidInput("the class map has no usable georeference: its areas are not known")
        other = None if before is None else stack.enter_context(rasterio.open(before.path, driver="GTiff"))
        target = Target(ground_of_map(file.crs, file.transform), file.height, file.width)
        near = surroundings(file, "EPSG:4326", _DEGREES)
        zones = [_zone(polygon, target, near) for polygon in polygons]
        for box in _strips(file):
            now, then = _read(file, box), None if other is None else _read_at(file, box, other)
            m2 = area.of(box)
            for number, share in enumerate(_shares(zones, box)):
                tally.add(number, now, then, np.where(np.isfinite(m2), m2, 0.0) * share)
    names = [polygon.name for polygon in polygons] or ["everything"]
    return [PolygonChange(*each) for each in zip(names, tally.sums, tally.counted_m2, strict=True)]


class _Tally:
    """Running sums of the quantities of each polygon."""

    def __init__(self, condition: Condition, after: ClassMap, before: ClassMap | None, polygons: int) -> None:
        self._now = {quantity: after.numbers(quantity.classes) for quantity in condition.quantities}
        self._hidden_now = [*after.numbers(condition.ignored), NODATA]
        earlier = after if before is None else before
        self._then = {quantity: earlier.numbers(quantity.classes) for quantity in condition.quantities}
        self._hidden_then = [*earlier.numbers(condition.ignored), NODATA]
        self.sums = [dict.fromkeys(condition.quantities, 0.0) for _ in range(polygons)]
        self.counted_m2 = [0.0] * polygons

    def add(self, number: int, now: Ids, then: Ids | None, m2: Floats) -> None:
        """Add the pixels of a box; `m2` is the area of each that a polygon covers."""
        counts = ~np.isin(now, self._hidden_now)
        if then is not None:
            counts &= ~np.isin(then, self._hidden_then)
        self.counted_m2[number] += float(m2[counts].sum())
        for quantity in self._now:
            was = None if then is None else np.isin(then, self._then[quantity])
            pixels = _pixels(quantity, np.isin(now, self._now[quantity]), was)
            self.sums[number][quantity] += float(m2[counts & pixels].sum())


def _pixels(quantity: Quantity, now: Mask, then: Mask | None) -> Mask:
    if quantity.measure == "area":
        return now
    if then is None:
        return np.zeros_like(now)
    return now & ~then if quantity.measure == "gained" else then & ~now


def _read_at(file: Any, box: Box, source: Any) -> Ids:
    """Return the class ids of another map on the grid of a box of a file; 255 outside that map."""
    found = np.full((box.height, box.width), NODATA, np.uint8)
    rasterio.warp.reproject(
        rasterio.band(source, 1), found, dst_transform=_place(file.transform, box), dst_crs=file.crs,
        resampling=Resampling.nearest, src_nodata=NODATA, dst_nodata=NODATA,
    )  # fmt: skip
    return found


def _zone(polygon: NamedPolygon, target: Target, near: Any | None) -> Zone:
    """Return a polygon on the grid of a map."""
    subject = Subject(f"Area {polygon.name!r}", "/area")
    [geometry] = AreaRequest.model_validate({"geometry": polygon.geometry}).geometries
    return place_zone(polygon.name, shape_of(geometry, subject), subject, _DEGREES, target, near)


def _shares(zones: Sequence[Zone], box: Box) -> Iterator[Floats]:
    """Yield the covered share of each pixel of a box by each zone; 1 everywhere where there are no zones."""
    if not zones:
        yield np.ones((1, 1))
    for zone in zones:
        yield zone.shares(box)


def _place(transform: Any, box: Box) -> Any:
    return transform @ Affine.translation(box.left, box.top)


def _strips(file: Any) -> Iterator[Box]:
    rows = max(1, _STRIP_PX // file.width)
    for top in range(0, file.height, rows):
        yield Box(top, 0, min(top + rows, file.height), file.width)


def _read(file: Any, box: Box) -> Ids:
    window = rasterio.windows.Window(box.left, box.top, box.width, box.height)
    read: Ids = file.read(1, window=window)
    return read
