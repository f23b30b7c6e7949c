"""Boxes of tiles put together to boxes of a scene. Pure.

    window of a tile     inner border: the scene goes on        outer border: the scene ends
         +------------------+
         |   [A]         [B |       A is kept. B touches an inner border, so it may be cut: it is dropped, and a tile
         |                  |       beside it finds it whole, as tiles overlap by more than an object is wide.
         +------------------+       At an outer border nothing is cut, and every box is kept.

Boxes of one class that overlap are one object, seen by several tiles: the best score stays (non-maximum suppression).
Equal scores are decided by place. So the result depends on neither the tiles nor their order, if the network
sees the same object in each tile that has it whole.

A cut box is missed only if no tile has the object whole. `cut_only` counts these, for the user to choose larger tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import shapely

from penstock.processors.geo.tiling.plan import Box

#: Columns of a table of boxes: edges in pixels of the scene, class, score, share of pixels with data, and 1 for a box
#: that touches an inner border.
LEFT, TOP, RIGHT, BOTTOM, LABEL, SCORE, VALID, CUT = range(8)
COLUMNS = 8
Table = npt.NDArray[np.float64]
#: Share of a cut box within a kept one of its class from which on it is a part of it.
_PART_OF = 0.5
#: Boxes whose neighbours are looked up together.
_CHUNK = 20_000


@dataclass(frozen=True, slots=True)
class SceneBoxes:
    """The objects of a scene."""

    #: Whole boxes, best first.
    table: Table
    #: Number of boxes that only touch inner borders: no tile saw the object whole.
    cut_only: int


def on_scene(
    boxes: Table,
    labels: npt.NDArray[np.int64],
    scores: Table,
    window: Box,
    scene: Box,
    valid: npt.NDArray[np.bool_],
    border_px: float,
) -> Table:
    """Return the table of a tile's boxes: (n, 4) edges left, top, right, bottom in pixels of its window.

    Boxes are clipped to the scene; those without any pixel with data are left out. `valid` is the validity of the
    window's pixels inside the scene. A box is cut if an edge is within `border_px` of an inner border.
    """
    height, width = valid.shape
    inner = (window.left > scene.left, window.top > scene.top, window.right < scene.right, window.bottom < scene.bottom)
    left, top, right, bottom = boxes.reshape(-1, 4).T
    near = (left <= border_px, top <= border_px, right >= window.width - border_px, bottom >= window.height - border_px)
    cut = np.zeros(len(left), bool)
    for is_inner, touches in zip(inner, near, strict=True):
        cut |= touches if is_inner else False
    inside = np.clip(boxes.reshape(-1, 4), 0, (width, height, width, height))
    shares = _valid_shares(inside, valid)
    moved = inside + np.array([window.left, window.top, window.left, window.top])
    table = np.column_stack([moved, labels, scores, shares, cut])
    return np.asarray(table[(shares > 0) & (inside[:, 2] > inside[:, 0]) & (inside[:, 3] > inside[:, 1])])


def put_together(table: Table, iou: float) -> SceneBoxes:
    """Return the objects of a scene from the boxes of all its tiles.

    Whole boxes of one class whose intersection is `iou` of their union or more are one object.
    """
    order = np.lexsort((*(table[:, column] for column in (BOTTOM, RIGHT, TOP, LEFT, LABEL)), -table[:, SCORE]))
    table = table[order]
    cut = table[:, CUT] > 0
    # A cut box is a part of a whole one, or one object together with the other cut boxes that it meets.
    whole, parts = table[~cut], table[cut]
    left = parts[~_within(parts, whole)]
    return SceneBoxes(suppress(whole, iou), _groups(left))


def suppress(table: Table, iou: float) -> Table:
    """Return the rows, best first, without those that overlap a better row of their class that stays."""
    tree, areas = _tree(table), _areas(table)
    stays = np.ones(len(table), bool)
    for start in range(0, len(table), _CHUNK):
        mine, other = tree.query(_shapes(table[start : start + _CHUNK]))
        mine = mine + start
        # Pairs of one class, the better row first: rows are sorted.
        pairs = (mine < other) & (table[mine, LABEL] == table[other, LABEL])
        mine, other = mine[pairs], other[pairs]
        shared = _shared(table[mine], table[other])
        close = (shared > 0) & (shared >= iou * (areas[mine] + areas[other] - shared))
        mine, other = mine[close], other[close]
        order = np.lexsort((other, mine))
        mine, other = mine[order], other[order]
        firsts = np.flatnonzero(np.diff(mine, prepend=-1))
        for row, rest in zip(mine[firsts].tolist(), np.split(other, firsts[1:]), strict=False):
            if stays[row]:
                stays[rest] = False
    return np.asarray(table[stays])


def _within(parts: Table, whole: Table) -> npt.NDArray[np.bool_]:
    """Return True for the parts that lie within a whole box of their class by half or more."""
    found = np.zeros(len(parts), bool)
    if len(whole) and len(parts):
        mine, other = _tree(whole).query(_shapes(parts))
        same = parts[mine, LABEL] == whole[other, LABEL]
        large = _shared(parts[mine], whole[other]) >= _PART_OF * _areas(parts)[mine]
        found[mine[same & large]] = True
    return found


def _groups(table: Table) -> int:
    """Return the number of groups of boxes of one class that touch."""
    classes = (table[table[:, LABEL] == label] for label in np.unique(table[:, LABEL]))
    return sum(int(shapely.get_num_geometries(shapely.union_all(_shapes(rows)))) for rows in classes)


def _valid_shares(boxes: Table, valid: npt.NDArray[np.bool_]) -> Table:
    """Return the share of valid pixels of each box; pixels count whose square the box touches."""
    sums = np.zeros((valid.shape[0] + 1, valid.shape[1] + 1))
    sums[1:, 1:] = valid.cumsum(axis=0, dtype=np.float64).cumsum(axis=1)
    left, top = np.floor(boxes[:, 0]).astype(int), np.floor(boxes[:, 1]).astype(int)
    right, bottom = np.ceil(boxes[:, 2]).astype(int), np.ceil(boxes[:, 3]).astype(int)
    held = sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left]
    return np.asarray(held / np.maximum((right - left) * (bottom - top), 1))


def _shapes(table: Table) -> npt.NDArray[Any]:
    return np.asarray(shapely.box(*table[:, [LEFT, TOP, RIGHT, BOTTOM]].T))


def _tree(table: Table) -> Any:
    return shapely.STRtree(_shapes(table))


def _areas(table: Table) -> Table:
    return np.asarray((table[:, RIGHT] - table[:, LEFT]) * (table[:, BOTTOM] - table[:, TOP]))


def _shared(one: Table, other: Table) -> Table:
    """Return the area of the intersection of each pair of boxes."""
    width = np.minimum(one[:, RIGHT], other[:, RIGHT]) - np.maximum(one[:, LEFT], other[:, LEFT])
    height = np.minimum(one[:, BOTTOM], other[:, BOTTOM]) - np.maximum(one[:, TOP], other[:, TOP])
    return np.asarray(np.maximum(width, 0) * np.maximum(height, 0))


def joined(tables: Sequence[Table]) -> Table:
    """Return all rows as one table."""
    return np.concatenate([np.zeros((0, COLUMNS)), *tables])
