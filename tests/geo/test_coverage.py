"""The covered share of each pixel equals the area of its intersection with the polygon."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st

from penstock.processors.geo.read.placed_polygons import polygonal
from penstock.processors.geo.tiling.coverage import MOST_PIECES, coverages
from tests.support.geo.shares import SHAPES, shares_of

HEIGHT, WIDTH = 14, 17
WHOLE = shapely.box(0, 0, WIDTH, HEIGHT)
#: Coordinates on borders and centres of pixels are as frequent as others.
#: Numbers of nine digits: GEOS itself divides by zero for some that are nearly 0.
COORDINATES = st.one_of(
    st.floats(-3, 20).map(lambda number: round(number, 9)), st.integers(-6, 40).map(lambda number: number / 2)
)
POINTS = st.lists(st.tuples(COORDINATES, COORDINATES), min_size=3, max_size=12)


def covered(shape: Any, most_px: int) -> npt.NDArray[np.float64]:
    found = np.zeros((HEIGHT, WIDTH))
    for part in coverages(shape):
        for box, share in part.strips(most_px):
            assert share.shape == (box.height, box.width)
            found[box.top : box.bottom, box.left : box.right] += share
    return found


def polygons(points: list[tuple[float, float]], hole: list[tuple[float, float]]) -> Any:
    shape, inner = (shapely.make_valid(shapely.Polygon(each)) for each in (points, hole))
    kept = polygonal(shapely.intersection(shapely.difference(shape, inner), WHOLE))
    return shapely.transform(kept, lambda xy: np.clip(xy, 0, (WIDTH, HEIGHT)))  # GEOS may leave it by 1e-200


@given(points=POINTS, hole=POINTS, most_px=st.integers(1, 300))
def test_each_share_is_the_area_of_the_intersection_with_its_pixel(points: Any, hole: Any, most_px: int) -> None:
    shape = polygons(points, hole)
    np.testing.assert_allclose(covered(shape, most_px), shares_of(shape, HEIGHT, WIDTH), rtol=0, atol=1e-9)


@given(points=POINTS, hole=POINTS, most_px=st.integers(1, 300))
def test_strips_of_any_height_give_the_same_bits(points: Any, hole: Any, most_px: int) -> None:
    shape = polygons(points, hole)
    np.testing.assert_array_equal(covered(shape, most_px), covered(shape, 10**9))


def test_pixels_inside_count_whole_and_pixels_outside_not_at_all() -> None:
    rows, columns = np.mgrid[0:120, 0:120]
    for name in ("star", "east", "west"):
        [part] = coverages(SHAPES[name])
        share = np.zeros((120, 120))
        share[part.box.top : part.box.bottom, part.box.left : part.box.right] = part.rows(part.box.top, part.box.bottom)
        squares = shapely.box(columns, rows, columns + 1, rows + 1)
        assert (share[shapely.covers(SHAPES[name], squares)] == 1).all()
        assert (share[shapely.disjoint(SHAPES[name], squares)] == 0).all()


def test_neighbours_cover_the_pixels_on_their_common_edge_together() -> None:
    rng = np.random.default_rng(5)
    edge = np.stack([rng.uniform(2, 15, 40), np.linspace(0, HEIGHT, 40)], axis=1)
    left = shapely.make_valid(shapely.Polygon([(0, 0), *edge, (0, HEIGHT)]))
    right = shapely.difference(WHOLE, left)
    np.testing.assert_allclose(covered(left, 20) + covered(right, 50), 1, rtol=0, atol=1e-9)


def test_polygons_of_more_edges_than_are_held_at_a_time_have_the_same_shares() -> None:
    """Tall teeth, whose rows are taken in parts, and flat ones, whose edges in one row are taken in parts."""
    tall = comb(2_000, 300.0)
    flat = shapely.transform(
        shapely.transform(comb(2_000, 0.9), lambda xy: xy[:, ::-1]), lambda xy: xy * (1_000, 0.0005)
    )
    for shape in (tall, flat):
        [one] = coverages(shape)
        assert len(one.edges) * max(one.box.height, one.box.width) > 2 * MOST_PIECES
        sums = sum(float(share.sum()) for _, share in one.strips())
        assert sums == pytest.approx(shape.area, rel=1e-9)


def comb(teeth: int, length: float) -> Any:
    """Return a valid polygon with so many teeth, each half a unit wide, on a back of a tenth."""
    ring = [(0.0, 0.0)]
    for at in range(teeth):
        ring += [(at, length), (at + 0.5, length), (at + 0.5, 0.1), (at + 1.0, 0.1)]
    return shapely.Polygon([*ring, (float(teeth), 0.0)])
