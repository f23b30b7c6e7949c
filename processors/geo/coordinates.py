"""What a network is told beside the pixels: when the scene was taken, and where it lies.

As Prithvi-EO-2.0 was trained: of each date the year and the day of the year counted from 0, in UTC, and latitude and
longitude of the centre of what the network sees. In training that was a chip, here it is a tile: so each tile is told
its own centre, unless the request names a place for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from pyproj import CRS, Transformer
from pyproj.exceptions import ProjError

from penstock.errors import InvalidInput
from penstock.processors.base import Array
from penstock.processors.geo.options import CoordinateOptions
from penstock.processors.geo.plan import Box
from penstock.processors.geo.radiometry import Source
from penstock.processors.geo.raster import Scene
from penstock.processors.geo.request import Location
from penstock.reports import Issue

#: float32 (dates, 2): year, and day of the year from 0.
TIME_NAME = "temporal_coords"
#: float32 (2,): latitude and longitude in degrees.
LOCATION_NAME = "location_coords"


LatLon = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Taken:
    """When a date's scene was taken, and who says so."""

    at: datetime | None = None
    source: Source = "none"


def year_and_day(time: datetime) -> tuple[int, int]:
    """Return the year and the day of the year from 0, in UTC."""
    day = time.astimezone(UTC).timetuple()
    return day.tm_year, day.tm_yday - 1


class Georeference:
    """Where a scene's pixels lie: latitude and longitude."""

    def __init__(self, scene: Scene) -> None:
        """Take a scene; raise `ProjError` where nobody knows where it lies."""
        if scene.crs is None or scene.transform is None:
            raise ProjError("the scene has no georeference")
        self._transform = scene.transform
        self._transformer = Transformer.from_crs(CRS.from_wkt(scene.crs.to_wkt()), CRS.from_epsg(4326), always_xy=True)

    def at(self, row: float, column: float) -> LatLon:
        """Return a place's latitude and longitude; pixel (0, 0) reaches from 0 to 1. Raise `ProjError` off the map."""
        x, y = self._transform @ (column, row)
        lon, lat = self._transformer.transform(x, y, errcheck=True)
        if not (math.isfinite(lat) and math.isfinite(lon)):
            raise ProjError("the place lies where the CRS is not defined")
        return lat, lon if abs(lon) <= 180 else (lon + 180) % 360 - 180


@dataclass(frozen=True, slots=True, eq=False)
class Coordinates:
    """What is known of a scene's dates and place, as far as the model wants it."""

    options: CoordinateOptions
    scene: Scene
    #: Of each date its year and day, and who says so; empty where one of them is not known.
    days: tuple[tuple[int, int], ...] = ()
    day_sources: tuple[Source, ...] = ()
    #: Of all tiles, by the request.
    location: LatLon | None = None
    #: Of each tile, where the request does not say it.
    georeference: Georeference | None = None

    def of(self, window: Box) -> dict[str, Array]:
        """Return what goes into a tile's prompt beside its pixels; what is not known is left out."""
        told = {}
        if self.days:
            told[TIME_NAME] = np.array(self.days, dtype=np.float32)
        location = self._centre(window)
        if location is not None:
            told[LOCATION_NAME] = np.array(location, dtype=np.float32)
        return told

    def to_json(self) -> dict[str, Any]:
        """Return what the statistics record; empty for a model that takes neither."""
        told: dict[str, Any] = {}
        if self.options.time != "no":
            told["time"] = list(map(list, self.days)) or None
            told["time_source"] = ", ".join(dict.fromkeys(self.day_sources)) or "none"
        if self.options.location != "no":
            centre = self._centre(Box(0, 0, self.scene.height, self.scene.width))
            told["location"] = None if centre is None else list(centre)
            told["location_source"] = (
                "request" if self.location else "centre of each tile" if self.georeference else "none"
            )
        return told

    def _centre(self, window: Box) -> LatLon | None:
        """Return the middle of what of a window lies in the scene."""
        if self.location is not None or self.georeference is None:
            return self.location
        bottom, right = min(window.bottom, self.scene.height), min(window.right, self.scene.width)
        try:
            return self.georeference.at((window.top + bottom) / 2, (window.left + right) / 2)
        except ProjError as error:
            raise InvalidInput(
                "A tile's centre lies where the scene's CRS is not defined. Give `location`.",
                errors=[Issue("/input/location", "is needed: the scene reaches beyond the map of its CRS")],
            ) from error


def find_coordinates(
    options: CoordinateOptions, scene: Scene, taken: Sequence[Taken], location: Location | None
) -> Coordinates:
    """Return what the model is told of a scene that was `taken` at its dates, and whose request names a `location`.

    Raises `InvalidInput` for what the model needs and nobody says, for a place that the model does not take, and for
    times that the request gives of some dates while others have none.
    """
    if location is not None and options.location == "no":
        raise InvalidInput("The model takes no location.", errors=[Issue("/input/location", "is not taken")])
    times = [] if options.time == "no" else _all_or_none(taken, needed=options.time == "needed")
    given = (location.lat, location.lon) if location else None
    georeference = None if given or options.location == "no" else _georeference(scene)
    if options.location == "needed" and not given and georeference is None:
        raise InvalidInput(
            "The model needs to know where the scene lies, and its file does not say it: give `location`.",
            errors=[Issue("/input/location", 'is needed, e.g. {"lat": 50.1, "lon": 8.7}')],
        )
    days = tuple(year_and_day(at) for at, _ in times)
    return Coordinates(options, scene, days, tuple(source for _, source in times), given, georeference)


def _all_or_none(taken: Sequence[Taken], *, needed: bool) -> list[tuple[datetime, Source]]:
    """Return the times if all are known. A network takes those of all its dates, or none."""
    known = [(time.at, time.source) for time in taken if time.at is not None]
    if len(known) == len(taken):
        return known
    if not needed and all(source != "request" for _, source in known):
        return []
    unknown = [number for number, time in enumerate(taken, start=1) if time.at is None]
    one = len(taken) == 1
    which = "the scene" if one else f"date {unknown[0]}"
    pointer = "/input/datetime" if one else f"/input/dates/{unknown[0] - 1}/datetime"
    raise InvalidInput(
        f"The model takes the time of {'the scene' if one else 'every date or of none'}, and nothing says when {which} "
        "was taken: give its `datetime`.",
        errors=[Issue(pointer, "is needed, e.g. 2020-01-27T07:02:33Z")],
    )


def _georeference(scene: Scene) -> Georeference | None:
    """Return where the scene's pixels lie, or None where nobody knows it."""
    try:
        georeference = Georeference(scene)
        georeference.at(scene.height / 2, scene.width / 2)
    except ProjError:
        return None
    return georeference
