"""Plans cover every scene exactly and keep what the exactness of halo tiles needs."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.processors.geo.plan import Box, Plan, Tile, make_plan

SIZES = st.integers(1, 900)
CUTS = st.tuples(st.integers(1, 8), st.integers(1, 6), st.integers(0, 5))  # stride, tile and halo in strides
BUDGETS = st.integers(1, 10**7)


def plan_of(height: int, width: int, cut: tuple[int, int, int], strip_bytes: int) -> Plan:
    stride, tile, halo = cut
    return make_plan(
        height,
        width,
        tile_px=tile * stride * 8,
        halo_px=halo * stride,
        stride_px=stride,
        pixel_bytes=13,
        strip_bytes=strip_bytes,
    )


def tiles(plan: Plan) -> list[Tile]:
    return [tile for strip in plan.strips() for tile in strip.tiles]


@given(SIZES, SIZES, CUTS, BUDGETS)
def test_each_pixel_is_in_one_core(height: int, width: int, cut: tuple[int, int, int], budget: int) -> None:
    seen = np.zeros((height, width), dtype=int)
    for tile in tiles(plan_of(height, width, cut, budget)):
        core = tile.core
        assert core.height > 0
        assert core.width > 0
        seen[core.top : core.bottom, core.left : core.right] += 1
    assert (seen == 1).all()


@given(SIZES, SIZES, CUTS, BUDGETS)
def test_windows_lie_on_the_strides_grid_and_hold_the_whole_halo_or_end_where_the_padded_scene_ends(
    height: int, width: int, cut: tuple[int, int, int], budget: int
) -> None:
    stride, _, halo = cut
    padded_height, padded_width = (-(-side // stride) * stride for side in (height, width))
    for tile in tiles(plan_of(height, width, cut, budget)):
        core, window = tile.core, tile.window
        assert not any(edge % stride for edge in (window.top, window.left, window.bottom, window.right))
        assert window.top == 0 or core.top - window.top == halo * stride
        assert window.left == 0 or core.left - window.left == halo * stride
        assert window.bottom == padded_height or window.bottom - core.bottom == halo * stride
        assert window.right == padded_width or window.right - core.right == halo * stride
        assert 0 <= window.top <= core.top
        assert core.bottom <= window.bottom <= padded_height
        assert 0 <= window.left <= core.left
        assert core.right <= window.right <= padded_width


@given(SIZES, SIZES, CUTS, BUDGETS)
def test_count_and_cost_are_those_of_the_tiles(height: int, width: int, cut: tuple[int, int, int], budget: int) -> None:
    plan = plan_of(height, width, cut, budget)
    found = tiles(plan)
    assert plan.count == len(found)
    assert plan.cost == sum(tile.window.height * tile.window.width for tile in found)


@given(SIZES, SIZES, CUTS, BUDGETS)
def test_a_strip_fits_the_budget_unless_it_is_one_tile_wide(
    height: int, width: int, cut: tuple[int, int, int], budget: int
) -> None:
    for strip in plan_of(height, width, cut, budget).strips():
        assert len(strip.tiles) == 1 or strip.window.height * strip.window.width * 13 <= budget


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
    plan = make_plan(10_980, 10_980, tile_px=768, halo_px=96, stride_px=16, pixel_bytes=13, strip_bytes=256 * 2**20)
    assert plan.count == 225
    assert {tile.core.width for tile in tiles(plan)} == {736, 10_980 - 14 * 736}
    assert len(plan.panels) == 1


def test_a_scene_no_larger_than_a_tile_is_seen_whole() -> None:
    plan = make_plan(700, 1, tile_px=768, halo_px=96, stride_px=16, pixel_bytes=13, strip_bytes=2**20)
    assert tiles(plan) == [Tile(core=Box(0, 0, 700, 1), window=Box(0, 0, 704, 16))]


def test_a_scene_of_100_000_columns_is_cut_into_panels() -> None:
    plan = make_plan(100_000, 100_000, tile_px=768, halo_px=96, stride_px=16, pixel_bytes=13, strip_bytes=256 * 2**20)
    assert len(plan.panels) == 5
    assert max(strip.window.width for strip in plan.strips()) < 22_000
