"""Tiling plan of a scene. Pure: the same model and scene size give the same plan on every worker and every attempt.

A tile has a window, which is the network's input, and a core inside the window, whose output is used. A row of tiles is
a strip: when a strip is finished, more rows of the scene are final. There are two methods:

`halo`, for convolutional networks. Cores cover the scene exactly; a window extends one halo beyond its core on each
side, or ends at the scene's edge. All windows of a scene have one size, so that they share batches. The first and the
last window have a halo on one side only, and therefore a larger core:

       0           core          halo                     padded width (a multiple of the stride)
       |--------------------------|......|                 |
                           |......|-------------|......|   |
                                         |......|----------|

Origins and halos are multiples of the network's stride, and windows end at the scene's edge. Therefore the network's
own padding is at the same place as for the whole scene. With a halo of the receptive radius each pixel is computed from
the same numbers as in the whole scene. The cost factor is (tile + 2 halo)² / tile²: larger tiles are cheaper.

With a halo that is `exact`, no result depends on the cut. Then windows may be oblong where this saves a twentieth of
the work. None has more pixels than the largest square one, of `tile_px + 2 halo_px` a side, and there are at least as
many strips. With `tile_px = 768` and 96 px of halo (960 x 960 px at most), a scene of 2048 px is cut into 3 x 2 windows
of 816 x 1120 px instead of 3 x 3 of 816 x 816 px. Large scenes keep square windows, which have the least halo.

`hann`, for networks that see their whole input, such as vision transformers. Windows of one size overlap by half or
more and are evenly spaced. `stitch` computes weighted means. Rows above the next strip's windows are final:

       0      final      final      final   width
       |------+----------|          |       |
              |----------+----------|       |
                         |----------+-------|

`whole`, for networks that find objects. Windows overlap as in `hann`, by more than an object is wide, and each is used
as it is: a tile's core is its window. `boxes` puts their boxes together.

If a strip would exceed the memory budget, the scene is split into panels of columns, which are processed one after the
other from top to bottom. Therefore memory does not grow with the scene. In `hann`, tiles across a panel's edge are
computed once for each panel; the result is the same as without panels.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Any


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of pixels: rows `top` to `bottom`, columns `left` to `right` (both exclusive)."""

    top: int
    left: int
    bottom: int
    right: int

    @property
    def height(self) -> int:
        """Number of rows."""
        return self.bottom - self.top

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.right - self.left

    def within(self, outer: Box) -> Box:
        """Return this box relative to the upper left corner of another box."""
        top, left = outer.top, outer.left
        return Box(self.top - top, self.left - left, self.bottom - top, self.right - left)

    def moved(self, rows: int, columns: int) -> Box:
        """Return this box, moved down and to the right."""
        return Box(self.top + rows, self.left + columns, self.bottom + rows, self.right + columns)

    def grown(self, by: int, multiple: int = 1) -> Box:
        """Return the smallest box with edges at multiples of a number that contains this one, and `by` more pixels."""
        top, left = self.top // multiple * multiple, self.left // multiple * multiple
        bottom, right = _round_up(self.bottom, multiple), _round_up(self.right, multiple)
        return Box(top - by, left - by, bottom + by, right + by)

    def clipped(self, outer: Box) -> Box | None:
        """Return the part of this box inside another box; None if they have no pixel in common."""
        top, left = max(self.top, outer.top), max(self.left, outer.left)
        bottom, right = min(self.bottom, outer.bottom), min(self.right, outer.right)
        return Box(top, left, bottom, right) if top < bottom and left < right else None


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile: `window` is the network's input (in the padded scene), `core` the part that is used (in the scene)."""

    core: Box
    window: Box


@dataclass(frozen=True, slots=True)
class Strip:
    """The tiles of one row within a panel, left to right."""

    #: Index in processing order, from 0; the same in every attempt.
    index: int
    #: Pixels that the strip's tiles need.
    window: Box
    tiles: tuple[Tile, ...]
    #: Boxes that are final after this strip, left to right, without gaps; empty for a restored strip.
    cells: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """A tile along one axis: its window, and the range `start` to `stop` that it makes final. Ranges have no gaps."""

    start: int
    stop: int
    window_start: int
    window_stop: int


@dataclass(frozen=True, slots=True)
class Tiling:
    """The tiling that a model's record asks for: arguments of `make_plan`."""

    tile_px: int
    halo_px: int = 0
    stride_px: int = 1
    overlap_px: int | None = None
    fixed: bool = False
    whole: bool = False
    exact: bool = False


#: Tiles of a panel along the columns, each with start and stop of its core.
Columns = tuple[tuple[Cut, int, int], ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The tiles of a scene, in processing order."""

    height: int
    width: int
    rows: tuple[Cut, ...]
    #: Cuts of the columns, by panel.
    panels: tuple[tuple[Cut, ...], ...]
    #: True for `hann` (overlapping tiles are averaged), False for `halo`.
    averaged: bool = False
    #: Part of the scene whose results are wanted; None for the whole scene. Tiles stay those of the whole scene.
    area: Box | None = None
    #: True if tiles overlap and the whole window of each is used; `averaged` is False.
    whole: bool = False

    @property
    def strip_count(self) -> int:
        """Number of strips of the whole scene."""
        return len(self.rows) * len(self.panels)

    @property
    def wanted_strips(self) -> tuple[int, ...]:
        """Indexes of the strips that have results."""
        wanted = [at for at, row in enumerate(self.rows) if self._has_rows(row)]
        panels = [number for number, panel in enumerate(self.panels) if self._columns(panel)]
        return tuple(number * len(self.rows) + at for number in panels for at in wanted)

    @property
    def window(self) -> Box:
        """The part of the scene that tiles need."""
        return self.window_of()

    def window_of(self, restored: Collection[int] = ()) -> Box:
        """Return the part of the scene that the tiles need of strips that are not `restored`."""
        windows = [strip.window for strip in self.strips(restored)] or [strip.window for strip in self.strips()]
        top, left = min(window.top for window in windows), min(window.left for window in windows)
        bottom, right = max(window.bottom for window in windows), max(window.right for window in windows)
        return Box(top, left, min(bottom, self.height), min(right, self.width))

    def count(self, restored: Collection[int] = ()) -> int:
        """Return the number of tiles, without the strips that are `restored` from an earlier attempt."""
        return sum(len(columns) for _, _, columns, _ in self._work(restored))

    def cost(self, restored: Collection[int] = ()) -> int:
        """Return the number of input pixels of the network, including halos, overlaps and padding."""
        return sum(
            _side_px(row) * sum(_side_px(cut) for cut, _, _ in columns) for _, row, columns, _ in self._work(restored)
        )

    def digest(self, facts: Mapping[str, Any]) -> str:
        """Return 32 hexadecimal digits that identify this plan and all other inputs of the pixels.

        `facts` are the other inputs as JSON values.
        """
        text = json.dumps([asdict(self), facts], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def strips(self, restored: Collection[int] = ()) -> Iterator[Strip]:
        """Yield the strips of each panel from top to bottom; panels from left to right.

        `restored` strips are skipped, except those whose tiles also contribute to other strips: these have no cells.
        """
        for index, row, columns, panel in self._work(restored):
            yield self._strip(index, row, columns, () if index in restored else panel)

    def _work(self, restored: Collection[int]) -> Iterator[tuple[int, Cut, Columns, tuple[Cut, ...]]]:
        """Yield index, row, tiles along the columns, and panel of each strip with work."""
        for number, panel in enumerate(self.panels):
            first, columns = number * len(self.rows), self._columns(panel)
            for index, row in enumerate(self.rows if columns else (), start=first):
                reached = self._reached(index - first, first)
                if any(later not in restored and self._has_rows(self.rows[later - first]) for later in reached):
                    yield index, row, columns, panel

    def _has_rows(self, row: Cut) -> bool:
        if self.area is None:
            return True
        start, stop = (row.window_start, row.window_stop) if self.whole else (row.start, row.stop)
        return start < self.area.bottom and self.area.top < stop

    def _reached(self, at: int, first: int) -> range:
        """Return the strips to which the tiles of a row contribute: its own strip and possibly later ones."""
        bottom = self.rows[at].window_stop if self.averaged else self.rows[at].stop
        return range(first + at, first + bisect_left(self.rows, bottom, lo=at, key=attrgetter("start")))

    def _columns(self, panel: tuple[Cut, ...]) -> Columns:
        if self.whole:
            first, last = (0, self.width) if self.area is None else (self.area.left, self.area.right)
            return tuple(
                (cut, cut.window_start, min(self.width, cut.window_stop))
                for cut in panel
                if cut.window_start < last and first < cut.window_stop
            )
        left, right = panel[0].start, panel[-1].stop
        first, last = (left, right) if self.area is None else (max(left, self.area.left), min(right, self.area.right))
        if not self.averaged:
            return tuple((cut, cut.start, cut.stop) for cut in panel if cut.start < last and first < cut.stop)
        every = (cut for cuts in self.panels for cut in cuts)
        return tuple(
            (cut, max(left, cut.window_start), min(right, cut.window_stop))
            for cut in every
            if cut.window_start < last and first < cut.window_stop and first < last
        )

    def _strip(self, index: int, row: Cut, columns: tuple[tuple[Cut, int, int], ...], panel: tuple[Cut, ...]) -> Strip:
        top, bottom = row.start, row.stop
        if self.averaged or self.whole:
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
    fixed: bool = False,
    whole: bool = False,
    exact: bool = False,
    area: Box | None = None,
) -> Plan:
    """Return the plan of a scene of `height` x `width` pixels (each at least 1).

    Without `overlap_px`, `tile_px` is the maximum side of a core with a halo on both sides; `tile_px` and `halo_px` are
    multiples of `stride_px`. With `fixed`, every core but those at the edges has this side, and every window the side
    `tile_px + 2 * halo_px`, also of a smaller scene. With `exact`, the cut may be another one with fewer pixels in all,
    and no more in a window than the square of `tile_px + 2 * halo_px`. With `overlap_px` (less than `tile_px`),
    `tile_px` is the side of every window, and `halo_px` and `stride_px` are ignored; `whole` then uses each window as
    it is, without means.

    A strip uses `pixel_bytes` per pixel of its window plus `column_bytes` per column, and at most `strip_bytes` unless
    a single column of tiles needs more. With `area`, only the tiles that its pixels need are planned, at the same
    places as without.
    """
    averaged = overlap_px is not None and not whole
    if overlap_px is None:
        tall_px, wide_px = tile_px, tile_px
        if exact:
            tall_px, wide_px = _cheapest(height, width, tile_px, halo_px, stride_px)
        rows = _cuts(height, tall_px, halo_px, stride_px, fixed=fixed)
        columns = _cuts(width, wide_px, halo_px, stride_px, fixed=fixed)
        tile, beside = _side_px(columns[0]) - 2 * halo_px, 2 * halo_px
    else:
        rows, columns = (_overlapping(side, tile_px, overlap_px) for side in (height, width))
        # The cells of a panel, plus the windows that extend into it from both sides.
        tile, beside = tile_px - overlap_px, 2 * tile_px
    affordable_px = strip_bytes // (pixel_bytes * _side_px(rows[0]) + column_bytes)
    most = max(1, (affordable_px - beside) // max(1, tile))
    return Plan(height, width, rows, tuple(_even_groups(columns, most)), averaged, area, whole)


def _cuts(size: int, tile_px: int, halo: int, stride: int, *, fixed: bool = False) -> tuple[Cut, ...]:
    """Cut one axis into the fewest windows of one size that cover it, from its start to its end."""
    padded = _round_up(size, stride)
    within = padded - 2 * halo
    if within <= tile_px:
        return (Cut(0, size, 0, tile_px + 2 * halo if fixed else padded),)
    step = tile_px if fixed else _windows(size, tile_px, halo, stride)[1] - 2 * halo
    edges = [0, *range(halo + step, padded - halo, step), size]
    return tuple(
        Cut(start, stop, begin, begin + step + 2 * halo)
        for start, stop in pairwise(edges)
        for begin in [max(0, min(start - halo, padded - step - 2 * halo))]
    )


def _windows(size: int, tile_px: int, halo: int, stride: int) -> tuple[int, int]:
    """Return number and side of the windows of `_cuts`."""
    padded = _round_up(size, stride)
    within = padded - 2 * halo
    if within <= tile_px:
        return 1, padded
    step = _round_up(-(-within // -(-within // tile_px)), stride)
    return -(-within // step), step + 2 * halo


def _cheapest(height: int, width: int, tile_px: int, halo: int, stride: int) -> tuple[int, int]:
    """Return height and width of the tiles whose windows have the fewest pixels in all.

    A window has no more pixels than the largest square one, and there are at least as many rows as of square tiles:
    the strips of a scene. Square tiles stay unless others save a twentieth. Of equal ones those that make more rows.
    """
    (rows, tall), (columns, wide) = (_windows(side, tile_px, halo, stride) for side in (height, width))
    chosen, least_px = (tile_px, tile_px), rows * tall * columns * wide * 19 // 20
    within, most_px = max(1, _round_up(height, stride) - 2 * halo), (tile_px + 2 * halo) ** 2
    for parts in range(2 * rows, rows - 1, -1):
        tall_px = _round_up(-(-within // parts), stride)
        down, tall = _windows(height, tall_px, halo, stride)
        wide_px = most_px // tall // stride * stride - 2 * halo
        if down >= rows and (wide_px > 0 or _round_up(width, stride) <= wide_px + 2 * halo):
            columns, wide = _windows(width, wide_px, halo, stride)
            if (px := down * tall * columns * wide) <= least_px:
                chosen, least_px = (tall_px, wide_px), px - 1
    return chosen


def _overlapping(size: int, tile: int, overlap: int) -> tuple[Cut, ...]:
    """Cut one axis into the fewest windows of one size with enough overlap; the last one ends at the axis' end.

    An axis shorter than a window gets one window, which extends beyond it.
    """
    steps = max(0, -(-(size - tile) // (tile - overlap)))
    starts = [step * (size - tile) // steps for step in range(steps + 1)] if steps else [0]
    return tuple(Cut(start, stop, start, start + tile) for start, stop in zip(starts, [*starts[1:], size], strict=True))


def _side_px(cut: Cut) -> int:
    return cut.window_stop - cut.window_start


def _even_groups(cuts: tuple[Cut, ...], most: int) -> Iterator[tuple[Cut, ...]]:
    groups = -(-len(cuts) // most)
    size = -(-len(cuts) // groups)
    for first in range(0, len(cuts), size):
        yield cuts[first : first + size]


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
