"""Provenance of a scene, as recorded in the statistics and the STAC item."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A source file of the scene."""

    #: Media reference from the request.
    reference: str
    etag: str | None


@dataclass(frozen=True, slots=True)
class Provenance:
    """Source files of a scene, and the bands and radiometry that were used."""

    #: Source files; the scene's own file first.
    sources: tuple[SourceFile, ...]
    #: Bands, radiometry and coordinates that were used, as JSON values.
    used: Mapping[str, Any]
    #: Acquisition time of each date, or none if the time of any date is unknown.
    acquired: tuple[datetime, ...] = ()
    #: Warnings in plain text, such as suspected undeclared nodata.
    notes: tuple[str, ...] = ()
    #: Media references of the STAC items that the request gives.
    items: tuple[str, ...] = ()
