"""How a scene is cut into tiles. Pure: the same model and scene give the same plan on every worker, after every crash.

Every tile is a core and a window around it. Cores cover the scene exactly; the network sees the window, which is the
core and a halo on each side that lies inside the padded scene:

       0        core        halo                        padded width (a multiple of the stride)
       |---------------------|......|                 |
                      |......|---------------|......| |
                                      |......|--------|

Origins and halos are multiples of the network's stride and windows end where the scene ends, so the network's own
padding falls where it would on the whole scene: with a halo of its receptive radius the result is the same, bit by bit.
The halo costs (tile + 2 halo)² / tile²: larger tiles are cheaper.

A row of tiles is a strip. A scene whose strips would not fit the budget is cut into panels of columns, each worked
through from top to bottom, so that memory grows with neither side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of pixels: rows `top` to before `bottom`, columns `left` to before `right`."""

    top: int
    left: int
    bottom: int
    right: int

    @property
    def height(self) -> int:
        """How many rows."""
        return self.bottom - self.top

    @property
    def width(self) -> int:
        """How many columns."""
        return self.right - self.left


@dataclass(frozen=True, slots=True)
class Tile:
    """What one prompt answers for (`core`, inside the scene) and sees (`window`, inside the padded scene)."""

    core: Box
    window: Box


@dataclass(frozen=True, slots=True)
class Strip:
    """The tiles of one row within a panel, left to right, and the pixels that must be held for them."""

    window: Box
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """A tile along one axis."""

    start: int
    stop: int
    window_start: int
    window_stop: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The tiles of a scene, in the order in which they are made and answered."""

    rows: tuple[Cut, ...]
    #: The columns' cuts, by panel.
    panels: tuple[tuple[Cut, ...], ...]

    @property
    def count(self) -> int:
        """How many tiles there are."""
        return len(self.rows) * sum(len(panel) for panel in self.panels)

    @property
    def cost(self) -> int:
        """How many pixels the network sees, halos and padding included."""
        rows = sum(cut.window_stop - cut.window_start for cut in self.rows)
        columns = sum(cut.window_stop - cut.window_start for panel in self.panels for cut in panel)
        return rows * columns

    def strips(self) -> Iterator[Strip]:
        """Yield panel after panel from left to right, each from top to bottom."""
        for panel in self.panels:
            for row in self.rows:
                window = Box(row.window_start, panel[0].window_start, row.window_stop, panel[-1].window_stop)
                yield Strip(window, tuple(_tile(row, column) for column in panel))


def make_plan(
    height: int, width: int, *, tile_px: int, halo_px: int, stride_px: int, pixel_bytes: int, strip_bytes: int
) -> Plan:
    """Cut a scene of `height` x `width` pixels (each at least 1).

    `tile_px` is the largest side of a core; it and `halo_px` are multiples of `stride_px`. A strip holds `pixel_bytes`
    per pixel of its window and at most `strip_bytes`, unless a single column of tiles needs more.
    """
    rows = _cuts(height, tile_px, halo_px, stride_px)
    columns = _cuts(width, tile_px, halo_px, stride_px)
    held_rows = max(cut.window_stop - cut.window_start for cut in rows)
    affordable_px = strip_bytes // (pixel_bytes * held_rows)
    tile = columns[0].stop - columns[0].start
    most = max(1, (affordable_px - 2 * halo_px) // tile)
    return Plan(rows, tuple(_even_groups(columns, most)))


def _cuts(size: int, tile_px: int, halo: int, stride: int) -> tuple[Cut, ...]:
    """Cut one axis into as few tiles as possible, all of one size but the last, which is at most as large."""
    padded = _round_up(size, stride)
    tile = _round_up(-(-size // -(-size // tile_px)), stride)
    return tuple(
        Cut(start, min(start + tile, size), max(0, start - halo), min(start + tile + halo, padded))
        for start in range(0, size, tile)
    )


def _even_groups(cuts: tuple[Cut, ...], most: int) -> Iterator[tuple[Cut, ...]]:
    groups = -(-len(cuts) // most)
    size = -(-len(cuts) // groups)
    for first in range(0, len(cuts), size):
        yield cuts[first : first + size]


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _tile(row: Cut, column: Cut) -> Tile:
    return Tile(
        Box(row.start, column.start, row.stop, column.stop),
        Box(row.window_start, column.window_start, row.window_stop, column.window_stop),
    )
