"""A grid of pixels without a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Grid:
    """As `penstock.processors.geo.grids.Placed` has it."""

    height: int
    width: int
    transform: Any | None
    crs: str | None = "EPSG:32633"
    gcps: tuple[Any, ...] = ()
