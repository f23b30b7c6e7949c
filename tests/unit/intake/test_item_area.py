"""Areas of searches: names of polygons, and overlaps compared with shapely."""

from __future__ import annotations

from typing import Any

import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidRequest
from penstock.intake.item_area import NamedPolygon, named_polygons, overlaps
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
