"""Where a scene comes from: what the statistics and the STAC item say of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Source:
    """A file that the scene was read from."""

    #: As it stands in the request.
    reference: str
    etag: str | None


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a scene comes from and how it was read."""

    #: The scene's own file first.
    sources: tuple[Source, ...]
    #: JSON-ready: the bands and the radiometry that were used.
    used: Mapping[str, Any]
    #: When the scene was taken.
    taken: datetime | None = None
    #: Sentences for people: what looks wrong in the scene, and is no error.
    notes: tuple[str, ...] = ()
