"""Boxes of tiles put together: the objects of a scene do not depend on its tiles."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.processors.geo.tiling.boxes import CUT, LABEL, SCORE, VALID, joined, on_scene, put_together
from penstock.processors.geo.tiling.plan import Box, make_plan

Table = npt.NDArray[np.float64]
SCENE = Box(0, 0, 100, 100)
WINDOW = Box(20, 20, 60, 60)
FULL = np.ones((40, 40), bool)


def tile(*boxes: tuple[float, float, float, float], window: Box = WINDOW, score: float = 0.9, label: int = 0) -> Table:
    table = np.array(boxes, np.float64).reshape(-1, 4)
    labels, scores = np.full(len(table), label), np.full(len(table), score)
    height, width = min(window.bottom, SCENE.bottom) - window.top, min(window.right, SCENE.right) - window.left
    return on_scene(table, labels, scores, window, SCENE, np.ones((height, width), bool), 2)


def test_boxes_become_those_of_the_scene() -> None:
    [row] = tile((10, 5, 20, 12), label=3)
    assert row.tolist() == [30, 25, 40, 32, 3, 0.9, 1, 0]


@pytest.mark.parametrize(("box", "cut"), [
    ((2, 10, 20, 20), 1), ((2.1, 10, 20, 20), 0), ((10, 1, 20, 20), 1), ((20, 10, 38, 20), 1), ((20, 10, 37.9, 20), 0),
    ((20, 20, 30, 40), 1),
])  # fmt: skip
def test_a_box_at_an_inner_border_is_cut(box: tuple[float, float, float, float], cut: int) -> None:
    assert tile(box)[0, CUT] == cut


def test_nothing_is_cut_where_the_scene_ends() -> None:
    corner = tile((0, 0, 10, 10), window=Box(0, 0, 40, 40))
    beyond = tile((20, 20, 45, 45), window=Box(80, 80, 120, 120))
    assert corner[0, CUT] == 0
    assert len(beyond) == 0, "it lies in the padding"
    [row] = tile((10, 10, 45, 45), window=Box(80, 80, 120, 120))
    assert row[:4].tolist() == [90, 90, 100, 100]


def test_a_box_without_data_is_none_and_the_share_of_data_is_told() -> None:
    valid = FULL.copy()
    valid[:, :15] = False
    boxes = np.array([[3, 3, 13, 13], [10, 10, 20, 20]], np.float64)
    table = on_scene(boxes, np.zeros(2, int), np.ones(2), WINDOW, SCENE, valid, 0)
    assert table[:, VALID].tolist() == [0.5]


def test_the_best_of_one_class_stays() -> None:
    better, worse = tile((10, 10, 20, 20), score=0.9), tile((11, 10, 21, 20), score=0.8)
    other = tile((10, 10, 20, 20), score=0.7, label=1)
    found = put_together(joined([worse, other, better]), 0.5).table
    assert found[:, [LABEL, SCORE]].tolist() == [[0, 0.9], [1, 0.7]]
    assert len(put_together(joined([worse, better]), 0.9).table) == 2


def test_a_suppressed_box_suppresses_none() -> None:
    chain = [tile((10, 10, 20, 20), score=0.9), tile((14, 10, 24, 20), score=0.8), tile((18, 10, 28, 20), score=0.7)]
    assert put_together(joined(chain), 0.4).table[:, SCORE].tolist() == [0.9, 0.7]


def test_cut_boxes_that_no_tile_has_whole_are_counted_once() -> None:
    left, right = Box(20, 0, 60, 40), Box(20, 30, 60, 70)
    halves = [tile((20, 10, 40, 20), window=left), tile((0, 10, 35, 20), window=right)]
    assert put_together(joined(halves), 0.5).cut_only == 1
    # The part of an object that another tile has whole is no object.
    whole = tile((0, 10, 8, 20), window=right)
    seen = [tile((31, 10, 36, 20), window=left), *halves[:0], whole]
    found = put_together(joined(seen), 0.5)
    assert (len(found.table), found.cut_only) == (1, 0)


@st.composite
def objects(draw: st.DrawFn) -> tuple[int, int, Table]:
    """Draw a scene and rectangles in it with distinct scores, also overlapping ones."""
    height, width = draw(st.integers(1, 60)), draw(st.integers(1, 60))
    rows = []
    for number in range(draw(st.integers(0, 12))):
        top, left = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
        bottom, right = top + draw(st.integers(1, 10)), left + draw(st.integers(1, 10))
        rows.append((left, top, min(right, width), min(bottom, height), draw(st.integers(0, 1)), 1 / (number + 2)))
    return height, width, np.array(rows, np.float64).reshape(-1, 6)


@given(objects(), st.integers(13, 40), st.integers(1, 30), st.integers(0, 2**32 - 1))
@example((1, 15, np.array([[2.0, 0, 12, 1, 0, 0.5]])), 13, 1, 0)  # the largest object in the least overlap
@settings(deadline=None)
def test_the_objects_do_not_depend_on_the_tiles(
    scene: tuple[int, int, Table], overlap_px: int, stride_px: int, seed: int
) -> None:
    """Each tile sees of each object what is in its window, and overlaps by more than an object and two borders."""
    height, width, rows = scene
    tile_px = overlap_px + stride_px
    border, outer, size = 1.0, Box(0, 0, height, width), {"stride_px": 1, "halo_px": 0, "pixel_bytes": 1}
    plan = make_plan(
        height, width, tile_px=tile_px, overlap_px=overlap_px, whole=True, strip_bytes=40 * tile_px, **size
    )
    tables = []
    for window in [each.window for strip in plan.strips() for each in strip.tiles]:
        edges = rows[:, :4] - np.tile([window.left, window.top], 2)
        seen = np.clip(edges, 0, [window.width, window.height] * 2)
        inside = (seen[:, 2] > seen[:, 0]) & (seen[:, 3] > seen[:, 1])
        valid = np.ones((min(window.bottom, height) - window.top, min(window.right, width) - window.left), bool)
        tables.append(on_scene(seen[inside], rows[inside, 4], rows[inside, 5], window, outer, valid, border))
    shuffled = [tables[at] for at in np.random.default_rng(seed).permutation(len(tables))]
    everything = on_scene(rows[:, :4], rows[:, 4], rows[:, 5], outer, outer, np.ones((height, width), bool), border)
    found, expected = put_together(joined(shuffled), 0.5), put_together(joined([everything]), 0.5)
    np.testing.assert_array_equal(found.table, expected.table)
    assert found.cut_only == 0
