"""A grid of pixels without a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Grid:
    """A grid that implements `penstock.processors.geo.read.grids.Placed`."""

    height: int
    width: int
    transform: Any | None
    crs: str | None = "EPSG:32633"
    gcps: tuple[Any, ...] = ()
