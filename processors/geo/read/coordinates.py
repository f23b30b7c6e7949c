"""Acquisition time and location as inputs of a network, beside the pixels.

The format is that of Prithvi-EO-2.0: for each date the year and the day of the year (from 0, UTC), and latitude and
longitude of the centre of the network's input. In training this was the centre of a chip; here it is the centre of each
tile, unless the request gives one location for all tiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np
from pyproj import CRS, Transformer
from pyproj.exceptions import ProjError

from penstock.errors import InvalidInput, Issue
from penstock.processors.base import Array
from penstock.processors.geo.options import CoordinateOptions
from penstock.processors.geo.read.radiometry import Source
from penstock.processors.geo.read.raster import Scene
from penstock.processors.geo.request import Location
from penstock.processors.geo.tiling.plan import Box

#: float32 (dates, 2): year, and day of the year from 0.
TIME_NAME = "temporal_coords"
#: float32 (2,): latitude and longitude in degrees.
LOCATION_NAME = "location_coords"


LatLon = tuple[float, float]


@dataclass(frozen=True, slots=True)
class AcquisitionTime:
    """Acquisition time of a scene at one date, and the source of the time."""

    at: datetime | None = None
    source: Source = "none"
    #: First and last time of a scene of which no single time is known: the interval of its STAC item.
    interval: tuple[datetime, ...] = ()

    @property
    def span(self) -> tuple[datetime, ...]:
        """The time, or both ends of the interval; empty if neither is known."""
        return self.interval if self.at is None else (self.at,)


def check_order(times: Sequence[AcquisitionTime]) -> tuple[str, ...]:
    """Check that the dates of a scene are in the order of time, and return notes on what could not be checked.

    `times` has the time of each date. Raises `InvalidInput` for a date that is earlier than a date before it.
    """
    known = [(number, time.at, time.source) for number, time in enumerate(times, start=1) if time.at is not None]
    for (before, first, first_source), (after, second, second_source) in pairwise(known):
        if second < first:
            raise InvalidInput(
                f"The dates are not in the order of time: date {after} ({_words(second, second_source)}) is earlier "
                f"than date {before} ({_words(first, first_source)}). List the earliest date first in `dates`. If a "
                "time is wrong, give the right `datetime` of that date.",
                errors=[Issue(f"/input/dates/{after - 1}", f"is earlier than date {before}")],
            )
    return tuple(_order_notes(times))


def _order_notes(times: Sequence[AcquisitionTime]) -> Iterator[str]:
    unknown = [str(number) for number, time in enumerate(times, start=1) if time.at is None]
    if len(times) > 1 and unknown:
        which = f"dates {', '.join(unknown[:-1])} and {unknown[-1]}" if len(unknown) > 1 else f"date {unknown[0]}"
        yield (
            f"The order of the dates was not checked, because the time of {which} is unknown. The first was used as "
            "the earliest. Give the `datetime` of each date to have it checked."
        )
    for number, (first, second) in enumerate(pairwise(times), start=1):
        if first.at is not None and first.at == second.at:
            yield f"Dates {number} and {number + 1} have the same time, {_words(first.at, first.source)}."


def _words(time: datetime, source: Source) -> str:
    return f"{time.isoformat()}, source: {source}"


def year_and_day(time: datetime) -> tuple[int, int]:
    """Return the year and the day of the year from 0, in UTC."""
    day = time.astimezone(UTC).timetuple()
    return day.tm_year, day.tm_yday - 1


class Georeference:
    """Transformation from a scene's pixels to latitude and longitude (WGS 84)."""

    def __init__(self, scene: Scene) -> None:
        """Create the transformation of a scene. Raise `ProjError` for a scene without CRS or geotransform."""
        if scene.crs is None or scene.transform is None:
            raise ProjError("the scene has no georeference")
        self._transform = scene.transform
        self._transformer = Transformer.from_crs(CRS.from_wkt(scene.crs.to_wkt()), CRS.from_epsg(4326), always_xy=True)

    def at(self, row: float, column: float) -> LatLon:
        """Return latitude and longitude of a pixel position; pixel (0, 0) covers 0 to 1.

        Raise `ProjError` outside the area where the CRS is defined.
        """
        x, y = self._transform @ (column, row)
        lon, lat = self._transformer.transform(x, y, errcheck=True)
        if not (math.isfinite(lat) and math.isfinite(lon)):
            raise ProjError("the position is outside the area where the CRS is defined")
        return lat, lon if abs(lon) <= 180 else (lon + 180) % 360 - 180


@dataclass(frozen=True, slots=True, eq=False)
class Coordinates:
    """Acquisition times and location of a scene, as far as the model uses them."""

    options: CoordinateOptions
    scene: Scene
    #: Year and day of each date, and the source of each; empty if any date is unknown.
    days: tuple[tuple[int, int], ...] = ()
    day_sources: tuple[Source, ...] = ()
    #: Location of all tiles, given by the request.
    location: LatLon | None = None
    #: Used for the centre of each tile if the request gives no location.
    georeference: Georeference | None = None

    def of(self, window: Box) -> dict[str, Array]:
        """Return the time and location inputs of a tile's prompt; unknown inputs are omitted."""
        found = {}
        if self.days:
            found[TIME_NAME] = np.array(self.days, dtype=np.float32)
        location = self._centre(window)
        if location is not None:
            found[LOCATION_NAME] = np.array(location, dtype=np.float32)
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the statistics; empty for a model that uses neither time nor location."""
        found: dict[str, Any] = {}
        if self.options.time != "no":
            found["time"] = list(map(list, self.days)) or None
            found["time_source"] = ", ".join(dict.fromkeys(self.day_sources)) or "none"
        if self.options.location != "no":
            centre = self._centre(Box(0, 0, self.scene.height, self.scene.width))
            found["location"] = None if centre is None else list(centre)
            found["location_source"] = (
                "request" if self.location else "centre of each tile" if self.georeference else "none"
            )
        return found

    def _centre(self, window: Box) -> LatLon | None:
        """Return the centre of the part of a window inside the scene."""
        if self.location is not None or self.georeference is None:
            return self.location
        bottom, right = min(window.bottom, self.scene.height), min(window.right, self.scene.width)
        try:
            return self.georeference.at((window.top + bottom) / 2, (window.left + right) / 2)
        except ProjError as error:
            raise InvalidInput(
                "The centre of a tile is outside the area where the scene's CRS is defined. Give `location`.",
                errors=[Issue("/input/location", "is needed: the scene extends beyond the area of its CRS")],
            ) from error


def find_coordinates(
    options: CoordinateOptions, scene: Scene, times: Sequence[AcquisitionTime], location: Location | None
) -> Coordinates:
    """Return the time and location inputs of a scene, from the times of its dates and the request's `location`.

    Raises `InvalidInput` if a required time or location is unknown, if the model does not use a location, or if the
    request gives times for some dates while others have none.
    """
    if location is not None and options.location == "no":
        raise InvalidInput("The model does not use a location.", errors=[Issue("/input/location", "is not allowed")])
    known = [] if options.time == "no" else _all_or_none(times, needed=options.time == "needed")
    given = (location.lat, location.lon) if location else None
    georeference = None if given or options.location == "no" else _georeference(scene)
    if options.location == "needed" and not given and georeference is None:
        raise InvalidInput(
            "The model needs the location of the scene, but the file has no usable georeference. Give `location`.",
            errors=[Issue("/input/location", 'is needed, e.g. {"lat": 50.1, "lon": 8.7}')],
        )
    days = tuple(year_and_day(at) for at, _ in known)
    return Coordinates(options, scene, days, tuple(source for _, source in known), given, georeference)


def _all_or_none(times: Sequence[AcquisitionTime], *, needed: bool) -> list[tuple[datetime, Source]]:
    """Return the times if all are known. A network uses the times of all dates or none."""
    known = [(time.at, time.source) for time in times if time.at is not None]
    if len(known) == len(times):
        return known
    if not needed and all(source != "request" for _, source in known):
        return []
    unknown = [number for number, time in enumerate(times, start=1) if time.at is None]
    one = len(times) == 1
    which = "the scene" if one else f"date {unknown[0]}"
    pointer = "/input/datetime" if one else f"/input/dates/{unknown[0] - 1}/datetime"
    raise InvalidInput(
        f"The model needs the acquisition time of {'the scene' if one else 'every date or of none'}, but the time of "
        f"{which} is unknown. Give its `datetime`.",
        errors=[Issue(pointer, "is needed, e.g. 2020-01-27T07:02:33Z")],
    )


def _georeference(scene: Scene) -> Georeference | None:
    """Return the scene's georeference, or None if it has no usable one."""
    try:
        georeference = Georeference(scene)
        georeference.at(scene.height / 2, scene.width / 2)
    except ProjError:
        return None
    return georeference
