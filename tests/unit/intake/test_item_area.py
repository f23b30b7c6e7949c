"""Areas of searches: names of polygons, and overlaps compared with shapely."""

from __future__ import annotations

import math
import re
from itertools import combinations, pairwise
from typing import Any

import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidRequest
from penstock.intake.item_area import NamedPolygon, check_degrees, named_polygons, overlaps
from tests.support.stac_api import square

TRIANGLE = {"type": "Polygon", "coordinates": [[[0, 0], [4, 0], [0, 4], [0, 0]]]}
RING = {
    "type": "Polygon",
    "coordinates": [
        [[0, 0], [10, 0], [10, 10], [0, 10], [0, 0]],
        [[2, 2], [8, 2], [8, 8], [2, 8], [2, 2]],
    ],
}


def feature(geometry: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "Feature", "properties": {}, "geometry": geometry, **more}


@pytest.mark.parametrize(
    ("area", "names"),
    [
        (TRIANGLE, ["area 1"]),
        (feature(TRIANGLE, properties={"name": "lagoon"}), ["lagoon"]),
        (feature(TRIANGLE, properties=None, id=7), ["7"]),
        (
            {"type": "FeatureCollection", "features": [feature(TRIANGLE, properties={"name": "a"}), feature(RING)]},
            ["a", "area 2"],
        ),
        ({"bbox": [0, 0, 1, 1]}, ["area 1"]),
        ({"bbox": [179, 0, -179, 1]}, ["area 1"]),
    ],
)
def test_polygons_have_names(area: dict[str, Any], names: list[str]) -> None:
    assert [polygon.name for polygon in named_polygons(area)] == names


@pytest.mark.parametrize(
    ("area", "pointer"),
    [
        ({"type": "Point", "coordinates": [0, 0]}, "/area"),
        ({**TRIANGLE, "crs": {"type": "name", "properties": {"name": "EPSG:32632"}}}, "/area/crs"),
        (
            {"type": "FeatureCollection", "features": [feature(RING, id="a"), feature(TRIANGLE, id="a")]},
            "/area",
        ),
        ({"type": "Feature", "geometry": None}, "/area"),
    ],
)
def test_another_area_is_refused(area: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        named_polygons(area)
    assert error.value.errors[0].pointer.startswith(pointer)


def test_the_hole_of_an_area_is_outside() -> None:
    ring = named_polygons(RING)
    assert overlaps(ring, square(1, 1, 0.5))
    assert not overlaps(ring, square(4, 4, 1))
    assert overlaps(ring, square(1, 4, 2))


def test_an_area_across_the_antimeridian_has_two_halves() -> None:
    area = named_polygons({"bbox": [179, 0, -179, 1]})
    assert overlaps(area, square(179.2, 0.2, 0.1))
    assert overlaps(area, square(-179.8, 0.2, 0.1))
    assert not overlaps(area, square(0, 0, 1))


@pytest.mark.parametrize(
    "footprint",
    [None, 3, {}, *({"type": "Polygon", **more} for more in ({}, {"coordinates": []}, {"coordinates": [[["a"]]]})),
     {"type": "Polygon", "coordinates": [[[0, 0]]]}, {"type": "Nonsense", "coordinates": [0, 0]}],
)  # fmt: skip
def test_a_malformed_footprint_overlaps_nothing(footprint: Any) -> None:
    assert not overlaps(named_polygons(square(50, 50, 1)), footprint)


def polygon(*points: tuple[float, float]) -> dict[str, Any]:
    return {"type": "Polygon", "coordinates": [[*map(list, points), list(points[0])]]}


@pytest.mark.parametrize(
    ("area", "sentence"),
    [
        (polygon((170, 0), (190, 0), (190, 10)), "has the longitude 190: write degrees from -180 to 180"),
        (polygon((500_000, 5_000_000), (500_100, 5_000_000), (500_100, 5_000_100)), "has the longitude 500000"),
        (polygon((0, 0), (10, 0), (10, 90.5)), "has the latitude 90.5: write degrees from -90 to 90"),
        (polygon((0, 0), (4, 4), (4, 0), (0, 4)), "has edges that cross, such as that from 0, 4"),
        ({"type": "Polygon", "coordinates": [[[0, 0], [4, 0], [0, 4], [1, 1]]]}, "has a ring that is not closed"),
        (feature(polygon((0, 0), (4, 4), (4, 0), (0, 4)), properties={"name": "bow"}), r"\(bow\)"),
        (
            {"type": "MultiPolygon", "coordinates": [square(0, 0, 4)["coordinates"], square(2, 2, 4)["coordinates"]]},
            "has edges that cross",
        ),
        ({**RING, "coordinates": [RING["coordinates"][0], square(8, 8, 4)["coordinates"][0]]}, "has edges that cross"),
    ],
)
def test_an_area_without_results_is_refused_where_it_is_given(area: dict[str, Any], sentence: str) -> None:
    polygons = named_polygons(area)
    with pytest.raises(InvalidRequest) as refused:
        check_degrees(polygons)
    assert re.search(sentence, refused.value.errors[0].detail)
    assert refused.value.errors[0].pointer == "/area"


@pytest.mark.parametrize(
    "area",
    [
        TRIANGLE, RING, {"bbox": [179, 0, -179, 1]}, {"bbox": [-180, -90, 180, 90]},
        {"type": "FeatureCollection", "features": [feature(square(0, 0, 4)), feature(square(2, 2, 4))]},
    ],
)  # fmt: skip
def test_other_areas_are_accepted(area: dict[str, Any]) -> None:
    check_degrees(named_polygons(area))


POINTS = st.tuples(st.integers(-180, 180), st.integers(-90, 90)) | st.tuples(*[st.integers(-3, 3)] * 2)


@given(st.lists(POINTS, min_size=3, max_size=8, unique=True))
def test_edges_that_cross_are_those_of_shapely(points: list[tuple[float, float]]) -> None:
    shape, wrong = shapely.Polygon(points), False
    try:
        check_degrees(named_polygons(polygon(*points)))
    except InvalidRequest:
        wrong = True
    assert not (wrong and shape.is_valid)
    edges = [shapely.LineString(ends) for ends in pairwise([*points, points[0]])]
    assert wrong or not any(one.crosses(other) for one, other in combinations(edges, 2))


def test_a_coast_of_many_points_is_checked_and_a_comb_takes_bounded_time() -> None:
    angles = [n * math.tau / 50_000 for n in range(50_000)]
    coast = [((10 + math.sin(40 * a)) * math.cos(a), (10 + math.sin(40 * a)) * math.sin(a)) for a in angles]
    check_degrees(named_polygons(polygon(*coast)))
    coast[25_000], coast[25_002] = coast[25_002], coast[25_000]
    with pytest.raises(InvalidRequest, match="cross"):
        check_degrees(named_polygons(polygon(*coast)))
    comb = [((-100 if n % 4 in (0, 3) else 100), n / 2000) for n in range(40_000)]
    check_degrees(named_polygons(polygon(*comb, (-101, 20), (-101, 0))))


NUMBERS = st.integers(-8, 8)
SQUARES = st.tuples(NUMBERS, NUMBERS, st.integers(1, 5))


@given(one=SQUARES, other=SQUARES, turned=st.booleans())
def test_overlaps_are_those_of_shapely(one: tuple[int, int, int], other: tuple[int, int, int], turned: bool) -> None:
    first, second = square(*one), square(*other)
    if turned:
        west, south, side = other
        points = [[west, south], [west + side, south], [west, south + side], [west, south]]
        second = {"type": "Polygon", "coordinates": [points]}
    wanted = shapely.intersects(shapely.geometry.shape(first), shapely.geometry.shape(second))
    assert overlaps([NamedPolygon("a", first)], second) == wanted
