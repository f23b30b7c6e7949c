"""How a scene is cut into tiles. Pure: the same model and scene give the same plan on every worker, after every crash.

A tile is a window, which the network sees, and within it a core, for which its answer counts. A row of tiles is a
strip: once it is answered, more rows of the scene are final. There are two ways:

`halo`, for convolutional networks. Cores cover the scene exactly; a window reaches a halo beyond its core on each side,
or ends where the scene ends. All windows of a scene have one size, so that they share batches; the first and the last
have a halo on one side only and so a larger core:

       0           core          halo                     padded width (a multiple of the stride)
       |--------------------------|......|                 |
                           |......|-------------|......|   |
                                         |......|----------|

Origins and halos are multiples of the network's stride and windows end where the scene ends, so the network's own
padding falls where it would on the whole scene: with a halo of its receptive radius each pixel is computed from the
same numbers. The halo costs (tile + 2 halo)² / tile²: larger tiles are cheaper.

`hann`, for networks that see all of their input, such as vision transformers. Windows of one size overlap by half or
more, evenly spread, and count wholly: `stitch` takes weighted means. What lies above the next strip's windows is final:

       0      final      final      final   width
       |------+----------|          |       |
              |----------+----------|       |
                         |----------+-------|

A scene whose strips would not fit the budget is cut into panels of columns, each worked through from top to bottom, so
that memory grows with neither side. In `hann` tiles across a panel's edge are answered once for either panel: the
result is the same as without panels.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any


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

    def within(self, outer: Box) -> Box:
        """Return this box in the coordinates of another one."""
        top, left = outer.top, outer.left
        return Box(self.top - top, self.left - left, self.bottom - top, self.right - left)


@dataclass(frozen=True, slots=True)
class Tile:
    """What one prompt answers for (`core`, inside the scene) and sees (`window`, inside the padded scene)."""

    core: Box
    window: Box


@dataclass(frozen=True, slots=True)
class Strip:
    """The tiles of one row within a panel, left to right."""

    #: From 0, in the order of the work; the same in every attempt.
    index: int
    #: The pixels that must be held for them.
    window: Box
    tiles: tuple[Tile, ...]
    #: What is final when they are answered, left to right, without a gap; nothing if it was already.
    cells: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """A tile along one axis: where it sees, and where it makes the axis final. Cuts follow each other without a gap."""

    start: int
    stop: int
    window_start: int
    window_stop: int


#: A panel's tiles along the columns, each with where its core begins and ends.
Columns = tuple[tuple[Cut, int, int], ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The tiles of a scene, in the order in which they are made and answered."""

    height: int
    width: int
    rows: tuple[Cut, ...]
    #: The columns' cuts, by panel.
    panels: tuple[tuple[Cut, ...], ...]
    #: Whether tiles are averaged where they overlap (`hann`) instead of put side by side.
    averaged: bool = False

    @property
    def strip_count(self) -> int:
        """How many strips there are."""
        return len(self.rows) * len(self.panels)

    def count(self, kept: Collection[int] = ()) -> int:
        """Return how many tiles there are, or how many are left if some strips are `kept` from an earlier attempt."""
        return sum(len(columns) for _, _, columns, _ in self._work(kept))

    def cost(self, kept: Collection[int] = ()) -> int:
        """Return how many pixels the network sees, halos, overlaps and padding included."""
        return sum(_seen(row) * sum(_seen(cut) for cut, _, _ in columns) for _, row, columns, _ in self._work(kept))

    def digest(self, facts: Mapping[str, Any]) -> str:
        """Return 32 hexadecimal digits that name this plan and everything else that its pixels depend on.

        `facts` are JSON-ready.
        """
        text = json.dumps([asdict(self), facts], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def strips(self, kept: Collection[int] = ()) -> Iterator[Strip]:
        """Yield panel after panel from left to right, each from top to bottom.

        Strips that are `kept` are left out, but for those whose tiles reach into rows that are not: they come without
        cells.
        """
        for index, row, columns, panel in self._work(kept):
            yield self._strip(index, row, columns, () if index in kept else panel)

    def _work(self, kept: Collection[int]) -> Iterator[tuple[int, Cut, Columns, tuple[Cut, ...]]]:
        """Yield every strip's index, row, tiles along the columns, and panel."""
        for number, panel in enumerate(self.panels):
            first, columns = number * len(self.rows), self._columns(panel)
            for index, row in enumerate(self.rows, start=first):
                if any(later not in kept for later in self._reached(index - first, first)):
                    yield index, row, columns, panel

    def _reached(self, at: int, first: int) -> range:
        """Return the strips that a row's tiles count for, which are those that it makes final and maybe later ones."""
        bottom = self.rows[at].window_stop if self.averaged else self.rows[at].stop
        later = (row.start < bottom for row in self.rows[at:])
        return range(first + at, first + at + sum(later))

    def _columns(self, panel: tuple[Cut, ...]) -> Columns:
        if not self.averaged:
            return tuple((cut, cut.start, cut.stop) for cut in panel)
        left, right = panel[0].start, panel[-1].stop
        every = (cut for cuts in self.panels for cut in cuts)
        return tuple(
            (cut, max(left, cut.window_start), min(right, cut.window_stop))
            for cut in every
            if cut.window_start < right and left < cut.window_stop
        )

    def _strip(self, index: int, row: Cut, columns: tuple[tuple[Cut, int, int], ...], panel: tuple[Cut, ...]) -> Strip:
        top, bottom = row.start, row.stop
        if self.averaged:
            top, bottom = row.window_start, min(self.height, row.window_stop)
        tiles = tuple(
            Tile(
                Box(top, left, bottom, right),
                Box(row.window_start, cut.window_start, row.window_stop, cut.window_stop),
            )
            for cut, left, right in columns
        )
        window = Box(row.window_start, tiles[0].window.left, row.window_stop, tiles[-1].window.right)
        return Strip(index, window, tiles, tuple(Box(row.start, cut.start, row.stop, cut.stop) for cut in panel))


def make_plan(
    height: int,
    width: int,
    *,
    tile_px: int,
    halo_px: int,
    stride_px: int,
    pixel_bytes: int,
    strip_bytes: int,
    column_bytes: int = 0,
    overlap_px: int | None = None,
) -> Plan:
    """Cut a scene of `height` x `width` pixels (each at least 1).

    With `halo_px`, `tile_px` is the largest side of a core with a halo on both sides; both are multiples of
    `stride_px`. With `overlap_px`, which is from half of `tile_px` to less than it, `tile_px` is the side of every
    window and the other two do not count. A strip holds `pixel_bytes` per pixel of its window, `column_bytes` more for
    each of its columns, and at most `strip_bytes`, unless a single column of tiles needs more.
    """
    averaged = overlap_px is not None
    if overlap_px is None:
        rows, columns = (_cuts(side, tile_px, halo_px, stride_px) for side in (height, width))
        tile, beside = _seen(columns[0]) - 2 * halo_px, 2 * halo_px
    else:
        rows, columns = (_overlapping(side, tile_px, overlap_px) for side in (height, width))
        # The cells of a panel, and the rest of the windows that reach into it from either side.
        tile, beside = tile_px - overlap_px, 2 * tile_px
    affordable_px = strip_bytes // (pixel_bytes * _seen(rows[0]) + column_bytes)
    most = max(1, (affordable_px - beside) // max(1, tile))
    return Plan(height, width, rows, tuple(_even_groups(columns, most)), averaged)


def _cuts(size: int, tile_px: int, halo: int, stride: int) -> tuple[Cut, ...]:
    """Cut one axis into as few windows of one size as possible; the first begins and the last ends where it does."""
    padded = _round_up(size, stride)
    within = padded - 2 * halo
    if within <= tile_px:
        return (Cut(0, size, 0, padded),)
    step = _round_up(-(-within // -(-within // tile_px)), stride)
    edges = [0, *range(halo + step, padded - halo, step), size]
    return tuple(
        Cut(start, stop, begin, begin + step + 2 * halo)
        for start, stop in pairwise(edges)
        for begin in [max(0, min(start - halo, padded - step - 2 * halo))]
    )


def _overlapping(size: int, tile: int, overlap: int) -> tuple[Cut, ...]:
    """Cut one axis into as few windows of one size as overlap enough; the last ends where the axis ends.

    An axis shorter than a window has one, which reaches beyond it.
    """
    steps = max(0, -(-(size - tile) // (tile - overlap)))
    starts = [step * (size - tile) // steps for step in range(steps + 1)] if steps else [0]
    return tuple(Cut(start, stop, start, start + tile) for start, stop in zip(starts, [*starts[1:], size], strict=True))


def _seen(cut: Cut) -> int:
    return cut.window_stop - cut.window_start


def _even_groups(cuts: tuple[Cut, ...], most: int) -> Iterator[tuple[Cut, ...]]:
    groups = -(-len(cuts) // most)
    size = -(-len(cuts) // groups)
    for first in range(0, len(cuts), size):
        yield cuts[first : first + size]


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
