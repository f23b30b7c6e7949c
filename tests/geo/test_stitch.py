"""Stitched tiles give the scene again, for every size, number and processing order of tiles, and with missing data."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ProcessorFailed
from penstock.processors.base import Output
from penstock.processors.geo.tiling.plan import Box
from penstock.processors.geo.tiling.stitch import Channels, window_weights
from tests.support.geo.in_memory import MemoryRows, Network, Numbers, mapped, plan_of

SIDES = st.one_of(st.integers(1, 48), st.sampled_from([1, 15, 16, 17, 31, 32, 33, 47]))
SHAPES = st.tuples(SIDES, SIDES)
TILES = st.integers(4, 24)
BATCHES = st.sampled_from([1, 3, 16])
BUDGETS = st.sampled_from([1, 2000, 10**9])
SEEDS = st.integers(0, 2**32 - 1)
tried = settings(deadline=None, max_examples=60)


def places(shape: tuple[int, int]) -> Numbers:
    """Return the row and the column of every pixel."""
    return np.stack(np.mgrid[: shape[0], : shape[1]]).astype(np.float32)


def mask(shape: tuple[int, int], seed: int) -> npt.NDArray[np.bool_]:
    """Return a random validity mask with blobs, from all valid to all invalid, so that some tiles are empty."""
    rng = np.random.default_rng(seed)
    coarse = rng.random((-(-shape[0] // 9), -(-shape[1] // 9))) < rng.random()
    return np.kron(coarse, np.ones((9, 9), bool))[: shape[0], : shape[1]] & (rng.random(shape) < 0.9)


def conv(radius: int, seed: int) -> Network:
    """Return a network with a given radius and stride 1. Its weights are integers, so that sums are exact."""
    weights = np.random.default_rng(seed).integers(1, 5, (2 * radius + 1, 2 * radius + 1))

    def network(pixels: Numbers) -> Numbers:
        padded = np.pad(pixels[0].astype(np.int64), radius)
        windows = np.lib.stride_tricks.sliding_window_view(padded, weights.shape)
        return ((windows * weights).sum(axis=(2, 3)) % 1009)[None]

    return network


def twice(pixels: Numbers) -> Numbers:
    """Return the input and twice the input."""
    return np.stack([pixels[0], 2 * pixels[-1]])


def by_place_in_the_tile(pixels: Numbers) -> Numbers:
    """Return outputs that depend on pixel, position and whole tile, as for a vision transformer."""
    _, height, width = pixels.shape
    ramp = np.linspace(0, 1, height)[:, None] + np.linspace(0, 2, width)
    return np.stack([pixels[0] * 0.3 + ramp, ramp * pixels.mean(dtype=np.float64)])


def averaged_whole(numbers: Numbers, network: Network, tile: int, overlap: int) -> Numbers:
    """Return the weighted means by the simplest method: all tiles, complete sums, one division."""
    _, height, width = numbers.shape
    beyond = ((0, 0), (0, max(0, tile - height)), (0, max(0, tile - width)))
    padded = np.pad(numbers, beyond, mode="reflect")
    once = np.sin(np.pi * (np.arange(tile) + 0.5) / tile) ** 2
    weights = once[:, None] * once
    starts = [
        [round_down * (side - tile) // steps for round_down in range(steps + 1)] if steps else [0]
        for side, steps in ((side, -(-(side - tile) // (tile - overlap))) for side in padded.shape[1:])
    ]
    sums, total = np.zeros((2, *padded.shape[1:])), np.zeros(padded.shape[1:])
    for top in starts[0]:
        for left in starts[1]:
            rows, columns = slice(top, top + tile), slice(left, left + tile)
            sums[:, rows, columns] += weights * network(padded[:, rows, columns]).astype(np.float32)
            total[rows, columns] += weights
    return (sums / total)[:, :height, :width]


@tried
@given(SHAPES, TILES, st.integers(0, 4), BATCHES, BUDGETS, SEEDS)
def test_a_halo_of_the_radius_equals_the_whole_scene(
    shape: tuple[int, int], tile: int, radius: int, batch: int, budget: int, seed: int
) -> None:
    numbers = np.random.default_rng(seed).integers(0, 250, (1, *shape)).astype(np.float32)
    network = conv(radius, seed)
    got = mapped(numbers, plan_of(shape, tile, halo=radius, strip_bytes=budget), network, batch=batch)
    np.testing.assert_array_equal(got, network(numbers))


@tried
@given(st.integers(3, 30), st.integers(1, 4), SEEDS)
def test_a_halo_one_pixel_less_does_not(tile: int, radius: int, seed: int) -> None:
    shape = (3 * tile + 2 * radius,) * 2
    numbers = np.random.default_rng(seed).integers(1, 250, (1, *shape)).astype(np.float32)
    network = conv(radius, seed)
    got = mapped(numbers, plan_of(shape, tile, halo=radius - 1), network)
    wrong = (got != network(numbers))[0]
    assert wrong.any()
    assert not wrong[0, 0], "but only at the seams"


@st.composite
def cuts(draw: st.DrawFn) -> tuple[int, int | None]:
    """Draw a tile's side and its overlap; None means a halo of 0."""
    tile = draw(TILES)
    return tile, draw(st.none() | st.integers(-(-tile // 2), 3 * tile // 4))


@tried
@given(SHAPES, cuts(), BATCHES, BUDGETS, SEEDS)
def test_every_pixel_stays_where_it_is_and_nodata_stays_nodata(
    shape: tuple[int, int], cut: tuple[int, int | None], batch: int, budget: int, seed: int
) -> None:
    known, (tile, overlap) = mask(shape, seed), cut
    plan = plan_of(shape, tile, overlap=overlap, strip_bytes=budget)
    got = mapped(places(shape), plan, twice, known=known, batch=batch)
    expected = np.where(known, twice(places(shape)), np.nan)
    np.testing.assert_array_equal(got, expected.astype(np.float32))


@tried
@given(SHAPES, cuts(), BUDGETS, SEEDS)
def test_a_constant_model_is_constant_everywhere_corners_too(
    shape: tuple[int, int], cut: tuple[int, int | None], budget: int, seed: int
) -> None:
    constants = np.random.default_rng(seed).random(3).astype(np.float32)[:, None, None]

    def constant(pixels: Numbers) -> Numbers:
        return np.broadcast_to(constants, (3, *pixels.shape[1:]))

    plan = plan_of(shape, cut[0], overlap=cut[1], strip_bytes=budget)
    got = mapped(places(shape), plan, constant)
    np.testing.assert_array_equal(got, np.broadcast_to(constants, got.shape))


@tried
@given(SHAPES, TILES, st.integers(0, 10), SEEDS)
def test_means_are_those_of_all_tiles_at_once(shape: tuple[int, int], tile: int, more: int, seed: int) -> None:
    overlap = min(-(-tile // 2) + more, 3 * tile // 4)
    numbers = np.random.default_rng(seed).random((1, *shape)).astype(np.float32)
    got = mapped(numbers, plan_of(shape, tile, overlap=overlap), by_place_in_the_tile)
    expected = averaged_whole(numbers, by_place_in_the_tile, tile, overlap)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@tried
@given(SHAPES, TILES, BATCHES, st.sampled_from([1, 500, 2000]), SEEDS)
def test_means_do_not_depend_on_batches_panels_and_the_order_of_the_work(
    shape: tuple[int, int], tile: int, batch: int, budget: int, seed: int
) -> None:
    numbers, known = np.random.default_rng(seed).random((1, *shape)).astype(np.float32), mask(shape, seed)
    overlap = -(-tile // 2)
    once = mapped(numbers, plan_of(shape, tile, overlap=overlap), by_place_in_the_tile, known=known)
    plan = plan_of(shape, tile, overlap=overlap, strip_bytes=budget)
    np.testing.assert_array_equal(mapped(numbers, plan, by_place_in_the_tile, known=known, batch=batch), once)


@tried
@given(SHAPES, cuts(), BUDGETS, st.sets(st.integers(0, 200)), SEEDS)
def test_what_is_not_kept_is_the_same_whatever_is_kept(
    shape: tuple[int, int], cut: tuple[int, int | None], budget: int, restored: set[int], seed: int
) -> None:
    numbers, known = np.random.default_rng(seed).random((1, *shape)).astype(np.float32), mask(shape, seed)
    plan = plan_of(shape, cut[0], overlap=cut[1], strip_bytes=budget)
    once = mapped(numbers, plan, by_place_in_the_tile, known=known)
    for strip in plan.strips():
        for cell in strip.cells if strip.index in restored else ():
            once[:, cell.top : cell.bottom, cell.left : cell.right] = np.nan
    np.testing.assert_array_equal(mapped(numbers, plan, by_place_in_the_tile, known=known, restored=restored), once)


@pytest.mark.parametrize("overlap", [None, 16])
def test_of_kept_strips_only_what_the_others_need_is_read(overlap: int | None) -> None:
    plan, numbers = plan_of((640, 40), 32, overlap=overlap), places((640, 40))
    rows = MemoryRows(numbers, np.ones((640, 40), dtype=bool))
    strips = plan.strip_count
    mapped(numbers, plan, twice, restored=range(strips - 2), rows=rows)
    assert min(box.top for box in rows.boxes if box.height) >= 640 - 3 * 32
    assert plan.count(range(strips - 2)) == (4 if overlap is None else 6)


@tried
@given(st.integers(4, 64), st.integers(1, 400))
def test_shares_are_above_0_and_add_up_to_1(tile: int, size: int) -> None:
    columns = plan_of((1, size), tile, overlap=-(-tile // 2))
    total = np.zeros(max(size, tile))
    cuts = tuple(cut for panel in columns.panels for cut in panel)
    for start, share in window_weights(cuts).items():
        assert (share > 0).all()
        total[start : start + tile] += share
    np.testing.assert_allclose(total, 1, rtol=1e-15)


def test_an_answer_of_another_name_or_shape_is_the_models_fault() -> None:
    channels, window = Channels("probability", 2), Box(0, 0, 4, 4)
    right = np.zeros((2, 4, 4), np.float32)
    assert channels.of(Output({"probability": right}), window) is right
    with pytest.raises(ProcessorFailed, match="returned logits, not `probability`"):
        channels.of(Output({"logits": right}), window)
    with pytest.raises(ProcessorFailed, match=r"returned shape \(3, 4, 4\); expected \(2, 4, 4\)"):
        channels.of(Output({"probability": np.zeros((3, 4, 4), np.float32)}), window)
