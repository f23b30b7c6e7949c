"""Plans cover every scene exactly, and halo tiles satisfy the conditions of exactness."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.processors.geo.tiling.plan import Box, Cut, Plan, Tile, make_plan

SIZES = st.integers(1, 300)
tried = settings(deadline=None)
CUTS = st.tuples(st.integers(1, 8), st.integers(1, 6), st.integers(0, 5))  # stride, tile and halo in strides
BUDGETS = st.integers(1, 2 * 10**6)
COLUMN_BYTES = 900


def held_bytes(window: Box) -> int:
    return window.width * (window.height * 13 + COLUMN_BYTES)


def plan_of(height: int, width: int, cut: tuple[int, int, int], strip_bytes: int, *, exact: bool = False) -> Plan:
    stride, tile, halo = cut
    return make_plan(
        height,
        width,
        tile_px=tile * stride * 8,
        halo_px=halo * stride,
        stride_px=stride,
        pixel_bytes=13,
        strip_bytes=strip_bytes,
        column_bytes=COLUMN_BYTES,
        exact=exact,
    )


def averaging(height: int, width: int, tile: int, more: int, strip_bytes: int) -> Plan:
    return make_plan(
        height, width, tile_px=tile, halo_px=0, stride_px=1, overlap_px=min(-(-tile // 2) + more, 3 * tile // 4),
        pixel_bytes=13, strip_bytes=strip_bytes, column_bytes=COLUMN_BYTES,
    )  # fmt: skip


def tiles(plan: Plan) -> list[Tile]:
    return [tile for strip in plan.strips() for tile in strip.tiles]


@tried
@given(SIZES, SIZES, CUTS, BUDGETS, st.booleans())
def test_each_pixel_is_in_one_core(
    height: int, width: int, cut: tuple[int, int, int], budget: int, exact: bool
) -> None:
    seen = np.zeros((height, width), dtype=int)
    for tile in tiles(plan_of(height, width, cut, budget, exact=exact)):
        core = tile.core
        assert core.height > 0
        assert core.width > 0
        seen[core.top : core.bottom, core.left : core.right] += 1
    assert (seen == 1).all()


@tried
@given(SIZES, SIZES, CUTS, BUDGETS, st.booleans())
def test_windows_lie_on_the_strides_grid_and_hold_the_whole_halo_or_end_where_the_padded_scene_ends(
    height: int, width: int, cut: tuple[int, int, int], budget: int, exact: bool
) -> None:
    stride, _, halo = cut
    padded_height, padded_width = (-(-side // stride) * stride for side in (height, width))
    for tile in tiles(plan_of(height, width, cut, budget, exact=exact)):
        core, window = tile.core, tile.window
        assert not any(edge % stride for edge in (window.top, window.left, window.bottom, window.right))
        assert window.top == 0 or core.top - window.top >= halo * stride
        assert window.left == 0 or core.left - window.left >= halo * stride
        assert window.bottom == padded_height or window.bottom - core.bottom >= halo * stride
        assert window.right == padded_width or window.right - core.right >= halo * stride
        assert 0 <= window.top <= core.top
        assert core.bottom <= window.bottom <= padded_height
        assert 0 <= window.left <= core.left
        assert core.right <= window.right <= padded_width


@tried
@given(SIZES, SIZES, CUTS, BUDGETS)
def test_all_windows_of_a_scene_have_one_size_and_cost_no_more_than_the_fewest_that_could_be(
    height: int, width: int, cut: tuple[int, int, int], budget: int
) -> None:
    stride, tile, halo = cut[0], cut[1] * cut[0] * 8, cut[2] * cut[0]
    plan = plan_of(height, width, cut, budget)
    windows = {(each.window.height, each.window.width) for each in tiles(plan)}
    assert len(windows) == 1
    columns = tuple(cut for panel in plan.panels for cut in panel)
    for size, side, cuts in ((height, windows.pop()[0], plan.rows), (width, _width(plan), columns)):
        padded = -(-size // stride) * stride
        assert side <= min(padded, tile + 2 * halo)
        assert len(cuts) <= max(1, -(-(padded - 2 * halo) // tile))
        # At most the scene, a halo on both sides of every cut, and the rounding to the stride.
        assert len(cuts) * side < padded + 2 * halo * (len(cuts) - 1) + len(cuts) * stride


@tried
@given(SIZES, SIZES, CUTS, BUDGETS)
def test_oblong_windows_have_one_size_no_more_pixels_than_a_square_one_and_save_a_twentieth(
    height: int, width: int, cut: tuple[int, int, int], budget: int
) -> None:
    side = (cut[1] * 8 + 2 * cut[2]) * cut[0]
    square, chosen = (plan_of(height, width, cut, budget, exact=exact) for exact in (False, True))
    ((tall, wide),) = {(each.window.height, each.window.width) for each in tiles(chosen)}
    assert tall * wide <= side * side
    assert len(chosen.rows) >= len(square.rows), "no fewer strips: checkpoints, and parts for several workers"
    if (chosen.rows, sum(chosen.panels, ())) != (square.rows, sum(square.panels, ())):
        assert chosen.cost() <= 0.95 * square.cost()


@pytest.mark.parametrize(
    ("shape", "count", "window"),
    [
        ((2048, 2048), 6, (816, 1120)), ((1024, 1024), 2, (608, 1024)), ((300, 5000), 2, (304, 2608)),
        ((1000, 5000), 8, (608, 1408)), ((960, 960), 1, (960, 960)), ((10_980, 10_980), 225, (912, 912)),
    ],
)  # fmt: skip
def test_a_scene_of_few_tiles_is_cut_into_oblong_windows_where_the_halo_is_exact(
    shape: tuple[int, int], count: int, window: tuple[int, int]
) -> None:
    """The cut of csmask. On a square scene of equal costs the one with more rows, which are its strips."""
    plan = make_plan(
        *shape, tile_px=768, halo_px=96, stride_px=16, pixel_bytes=13, strip_bytes=10**9, exact=True
    )  # fmt: skip
    assert plan.count() == count
    assert {(tile.window.height, tile.window.width) for tile in tiles(plan)} == {window}


@pytest.mark.parametrize(("size", "sides"), [(960, [960]), (961, [592, 592]), (1200, [704, 704]), (1728, [960, 960])])
def test_a_scene_little_larger_than_a_tile_has_equal_windows_with_a_halo_only_at_the_cut(
    size: int, sides: list[int]
) -> None:
    """The cut of csmask: windows of 960 px at most, 96 px of halo, a stride of 16 px."""
    plan = make_plan(
        size, 400, tile_px=768, halo_px=96, stride_px=16, pixel_bytes=13, strip_bytes=10**9, column_bytes=COLUMN_BYTES
    )  # fmt: skip
    assert [row.window_stop - row.window_start for row in plan.rows] == sides
    assert sum(sides) - size < 2 * 96 * (len(sides) - 1) + 16 * len(sides), "the halos, and the rounding to the stride"


def _width(plan: Plan) -> int:
    return tiles(plan)[0].window.width


@tried
@given(SIZES, SIZES, CUTS, BUDGETS)
def test_count_and_cost_are_those_of_the_tiles(height: int, width: int, cut: tuple[int, int, int], budget: int) -> None:
    plan = plan_of(height, width, cut, budget)
    found = tiles(plan)
    assert plan.count() == len(found)
    assert plan.cost() == sum(tile.window.height * tile.window.width for tile in found)


@tried
@given(SIZES, SIZES, CUTS, BUDGETS)
def test_a_strip_fits_the_budget_unless_it_is_one_tile_wide(
    height: int, width: int, cut: tuple[int, int, int], budget: int
) -> None:
    for strip in plan_of(height, width, cut, budget).strips():
        assert len(strip.tiles) == 1 or held_bytes(strip.window) <= budget


@tried
@given(SIZES, SIZES, CUTS, BUDGETS)
def test_strips_of_a_panel_go_down_and_hold_their_tiles(
    height: int, width: int, cut: tuple[int, int, int], budget: int
) -> None:
    before: Box | None = None
    for strip in plan_of(height, width, cut, budget).strips():
        box = strip.window
        if before is not None and before.left == box.left:
            assert before.top <= box.top
            assert before.bottom <= box.bottom
        assert all(box.left <= tile.window.left and tile.window.right <= box.right for tile in strip.tiles)
        assert all((tile.window.top, tile.window.bottom) == (box.top, box.bottom) for tile in strip.tiles)
        before = box


def test_a_sentinel_2_scene_is_cut_into_15_by_15_tiles_of_one_size() -> None:
    plan = make_plan(
        10_980,
        10_980,
        tile_px=768,
        halo_px=96,
        stride_px=16,
        pixel_bytes=13,
        strip_bytes=288 * 2**20,
        column_bytes=2 * 512 * 13,
    )
    assert plan.count() == 225
    assert {tile.core.width for tile in tiles(plan)} == {816, 720, 10_980 - 816 - 13 * 720}
    assert {(tile.window.height, tile.window.width) for tile in tiles(plan)} == {(912, 912)}
    assert len(plan.panels) == 1


def test_a_scene_no_larger_than_a_tile_is_seen_whole() -> None:
    plan = make_plan(700, 1, tile_px=768, halo_px=96, stride_px=16, pixel_bytes=13, strip_bytes=2**20)
    assert tiles(plan) == [Tile(core=Box(0, 0, 700, 1), window=Box(0, 0, 704, 16))]


def test_a_scene_of_100_000_columns_is_cut_into_panels() -> None:
    plan = make_plan(
        100_000,
        100_000,
        tile_px=768,
        halo_px=96,
        stride_px=16,
        pixel_bytes=13,
        strip_bytes=288 * 2**20,
        column_bytes=2 * 512 * 13,
    )
    assert len(plan.panels) == 10
    assert max(strip.window.width for strip in plan.strips()) < 12_000


SIDES = st.integers(1, 150)
TILES = st.integers(16, 80)


@tried
@given(SIDES, SIDES, TILES, st.integers(0, 20), BUDGETS)
def test_averaged_tiles_have_one_size_and_end_where_the_scene_ends(
    height: int, width: int, tile: int, more: int, budget: int
) -> None:
    plan = averaging(height, width, tile, more, budget)
    covered = np.zeros((height, width), dtype=int)
    for each in tiles(plan):
        window, core = each.window, each.core
        assert (window.height, window.width) == (tile, tile)
        assert window.top >= 0
        assert window.left >= 0
        assert window.bottom <= max(tile, height)
        assert window.right <= max(tile, width)
        assert core.within(window).top >= 0
        assert window.left <= core.left < core.right <= window.right
        covered[core.top : core.bottom, core.left : core.right] += 1
    assert (covered >= 1).all()
    assert plan.count() == len(tiles(plan))


@tried
@given(st.integers(1, 900), TILES, st.integers(0, 20))
def test_neighbours_overlap_by_half_or_more_and_by_no_more_tiles_than_that_takes(
    size: int, tile: int, more: int
) -> None:
    overlap = min(-(-tile // 2) + more, 3 * tile // 4)
    rows = averaging(size, 1, tile, more, 10**9).rows
    starts = [row.window_start for row in rows]
    assert starts[0] == 0
    assert starts[-1] == max(0, size - tile)
    assert all(b - a <= tile - overlap for a, b in pairwise(starts))
    assert (len(starts) - 2) * (tile - overlap) < max(1, size - tile)


@tried
@given(SIDES, SIDES, TILES, st.integers(0, 20), BUDGETS, CUTS, st.booleans())
def test_each_pixel_is_made_final_once_when_all_of_its_tiles_are_answered(
    height: int, width: int, tile: int, more: int, budget: int, cut: tuple[int, int, int], averaged: bool
) -> None:
    plan = averaging(height, width, tile, more, budget) if averaged else plan_of(height, width, cut, budget)
    waiting, final = np.zeros((height, width), dtype=int), np.zeros((height, width), dtype=bool)
    for each in tiles(plan):
        waiting[each.core.top : each.core.bottom, each.core.left : each.core.right] += 1
    for number, strip in enumerate(plan.strips()):
        assert strip.index == number
        for each in strip.tiles:
            waiting[each.core.top : each.core.bottom, each.core.left : each.core.right] -= 1
        for cell in strip.cells:
            there = slice(cell.top, cell.bottom), slice(cell.left, cell.right)
            assert not final[there].any()
            assert not waiting[there].any()
            final[there] = True
    assert final.all()
    assert number + 1 == plan.strip_count


@tried
@given(SIDES, SIDES, TILES, BUDGETS, st.sets(st.integers(0, 60)), st.booleans())
def test_restored_strips_are_skipped_unless_other_strips_need_their_tiles(
    height: int, width: int, tile: int, budget: int, restored: set[int], averaged: bool
) -> None:
    cut = (1, 1 + tile // 8, 0)
    plan = averaging(height, width, tile, 0, budget) if averaged else plan_of(height, width, cut, budget)
    whole, left = (
        {strip.index: strip for strip in plan.strips()},
        {strip.index: strip for strip in plan.strips(restored)},
    )
    for index, strip in whole.items():
        needed = any(
            cell.top < strip.tiles[0].core.bottom and strip.tiles[0].core.top < cell.bottom
            for other in whole.values()
            if other.index not in restored and other.index // len(plan.rows) == index // len(plan.rows)
            for cell in other.cells[:1]
        )
        assert (index in left) == needed
        if needed:
            assert left[index].tiles == strip.tiles
            assert left[index].cells == (() if index in restored else strip.cells)
    assert plan.count(restored) == sum(len(strip.tiles) for strip in left.values())
    if not averaged:
        assert set(left) == set(whole) - restored


@tried
@given(SIDES, SIDES, TILES, BUDGETS)
def test_an_averaged_strip_fits_the_budget_unless_it_finishes_one_tiles_columns(
    height: int, width: int, tile: int, budget: int
) -> None:
    for strip in averaging(height, width, tile, 0, budget).strips():
        assert len(strip.cells) == 1 or held_bytes(strip.window) <= budget


def test_a_digest_names_the_plan_and_all_that_it_is_told() -> None:
    plan = plan_of(500, 300, (4, 2, 1), 10**6)
    assert plan.digest({"a": [1, None]}) == plan_of(500, 300, (4, 2, 1), 10**6).digest({"a": [1, None]})
    assert len(plan.digest({})) == 32
    others = [
        plan.digest({"a": [1]}),
        plan.digest({}),
        plan_of(501, 300, (4, 2, 1), 10**6).digest({}),
        plan_of(500, 300, (4, 2, 2), 10**6).digest({}),
        plan_of(500, 300, (4, 3, 1), 10**6).digest({}),
        plan_of(500, 300, (4, 2, 1), 10**4).digest({}),
        averaging(500, 300, 64, 0, 10**6).digest({}),
    ]
    assert len(set(others)) == len(others)


class CountedRows(tuple[Cut, ...]):
    """Rows that count those that are looked at one by one."""

    looked = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        CountedRows.looked += len(found) if isinstance(at, slice) else 1
        return found


def test_a_small_area_of_a_huge_scene_is_planned_without_each_pair_of_its_rows() -> None:
    side, area = 1_000_000, Box(500_000, 700_000, 500_300, 700_400)
    plan = make_plan(side, side, tile_px=128, halo_px=1, stride_px=1, pixel_bytes=4, strip_bytes=2**24, area=area)
    counted = replace(plan, rows=CountedRows(plan.rows))
    window = counted.window
    assert window.top <= area.top
    assert window.bottom >= area.bottom
    assert window.height < 600
    assert CountedRows.looked < 100 * len(plan.rows)
