"""Polygons in EPSG:4326 are at the right place, also across the antimeridian and over the poles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import shapely
from pyproj import Geod

from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.write.lonlat import NoLonLat, ToLonLat, lonlat_bounds

POLAR, SOUTH_POLAR = "EPSG:3413", "EPSG:3031"
ROUND = shapely.box(-1e6, -1e6, 1e6, 1e6)
INNER = shapely.box(-5e5, -5e5, 5e5, 5e5)
QUARTER = shapely.box(0, 0, 1e6, 1e6)


def to_lonlat(crs: str, polygon: Any, step: float = 20_000, bend: float = 200) -> Any:
    (moved,) = ToLonLat(rasterio.CRS.from_string(crs), step, bend).polygons(np.array([polygon]))
    assert moved.is_valid
    return moved


def square_metres(geometry: Any) -> float:
    """Return the area on the ellipsoid; lines along a parallel are densified."""
    parts = shapely.get_parts(shapely.segmentize(geometry, 0.1))
    return sum(abs(Geod(ellps="WGS84").geometry_area_perimeter(part)[0]) for part in parts)


@pytest.mark.parametrize(
    ("crs", "polygon", "bounds", "parts"),
    [
        ("EPSG:4326", shapely.box(10, 40, 12, 41), (10, 40, 12, 41), 1),
        ("EPSG:4326", shapely.box(179, -20, 182, -18), (179, -20, -178, -18), 2),
        ("EPSG:4326", shapely.box(-182, -20, -179, -18), (178, -20, -179, -18), 2),
        ("EPSG:4326", shapely.box(200, -10, 230, 10), (-160, -10, -130, 10), 1),
        ("EPSG:4326", shapely.box(-180, -90, 180, 90), (-180, -90, 180, 90), 1),
        ("EPSG:4326", shapely.box(0, -90, 360, 90), (-180, -90, 180, 90), 1),
        ("EPSG:4267", shapely.box(-100, 40, -99, 41), (-100, 40, -99, 41), 1),
        ("EPSG:3857", shapely.box(19.9e6, 1e6, 20.2e6, 1.2e6), (178.765, 8.947, -178.540, 10.717), 2),
        ("EPSG:3832", shapely.box(2e6, 1e6, 5e6, 1.2e6), (167.966, 9.006, -165.084, 10.787), 2),
        ("EPSG:32660", shapely.box(6e5, 1e6, 9e5, 1.2e6), (177.910, 9.029, -179.343, 10.854), 2),
        (POLAR, ROUND, (-180, 76.999, 180, 90), 1),
        (POLAR, QUARTER, (45, 76.999, 135, 90), 1),
        (POLAR, shapely.box(-1e6, 0, 1e6, 1e6), (45, 76.999, -135, 90), 2),
        (POLAR, ROUND - INNER, (-180, 76.999, 180, 85.387), 1),
        (POLAR, ROUND - QUARTER, (135, 76.999, 45, 90), 2),
        (SOUTH_POLAR, ROUND, (-180, -90, 180, -77.037), 1),
    ],
    ids=[
        "plain", "antimeridian from the west", "antimeridian from the east", "beyond 180", "the world",
        "the world from 0 to 360", "NAD27", "web Mercator", "Pacific Mercator", "UTM",
        "the pole within", "the pole at a corner", "the pole on an edge", "a ring round the pole",
        "three quarters round the pole", "the south pole",
    ],
)  # fmt: skip
def test_bounds_and_parts(crs: str, polygon: Any, bounds: tuple[float, ...], parts: int) -> None:
    moved = to_lonlat(crs, polygon)
    assert lonlat_bounds(moved) == pytest.approx(bounds, abs=2e-3)
    assert len(shapely.get_parts(moved)) == parts
    assert np.abs(shapely.get_coordinates(moved)[:, 0]).max() <= 180
    for part in shapely.get_parts(moved):
        assert shapely.is_ccw(shapely.get_exterior_ring(part))
        assert not shapely.is_ccw(shapely.get_rings(part)[1:]).any()


def test_what_lies_round_a_pole_has_the_area_of_its_parts() -> None:
    area = square_metres(to_lonlat(POLAR, ROUND))
    quarters = square_metres(to_lonlat(POLAR, QUARTER)) + square_metres(to_lonlat(POLAR, ROUND - QUARTER))
    rings = square_metres(to_lonlat(POLAR, INNER)) + square_metres(to_lonlat(POLAR, ROUND - INNER))
    assert (quarters, rings) == pytest.approx((area, area), rel=1e-6)
    assert area == pytest.approx(4 * square_metres(to_lonlat(POLAR, QUARTER)), rel=1e-6)


def test_a_polygon_cut_at_the_antimeridian_has_the_area_of_its_twin_elsewhere() -> None:
    cut = to_lonlat("EPSG:4326", shapely.box(179, -20, 182, -18) - shapely.box(179.5, -19.5, 180.5, -19))
    twin = to_lonlat("EPSG:4326", shapely.box(9, -20, 12, -18) - shapely.box(9.5, -19.5, 10.5, -19))
    assert square_metres(cut) == pytest.approx(square_metres(twin), rel=1e-9)
    assert not shapely.contains_xy(cut, 179.9, -19.2)
    assert shapely.contains_xy(cut, [179.9, -179.9], [-19.9, -19.9]).all()


def test_long_lines_of_a_projection_are_followed() -> None:
    strip = shapely.box(3e5, 5e6, 7e5, 5.0001e6)
    followed, straight = (to_lonlat("EPSG:32633", strip, step, 1e7) for step in (1_000, 1e7))
    assert not shapely.contains_xy(straight, 15.0, 45.1527)
    middle = shapely.get_coordinates(followed)[:, 1]
    assert middle.max() - shapely.get_coordinates(straight)[:, 1].max() > 0.02


@pytest.mark.parametrize("left", [-5e3, 1e3, 2e4, 3e5])
def test_near_a_pole_short_lines_are_followed_too(left: float) -> None:
    pixels = shapely.box(left, 2e3, left + 1e4, 1.2e4)
    expected = square_metres(to_lonlat(POLAR, pixels, 10, 1e9))  # so short that no line needs more points
    assert square_metres(to_lonlat(POLAR, pixels, 16e4, 20)) == pytest.approx(expected, rel=2e-3)
    assert shapely.get_num_coordinates(to_lonlat(POLAR, pixels, 16e4, 20)) < 400


@pytest.mark.parametrize(
    ("crs", "polygon", "sentence"),
    [
        (None, shapely.box(0, 0, 1, 1), "no CRS"),
        ("+proj=ortho +lat_0=0 +lon_0=0", shapely.box(6e6, 6e6, 7e6, 7e6), "outside the area where its CRS is defined"),
        ('LOCAL_CS["a grid of our own",UNIT["metre",1]]', shapely.box(0, 0, 1, 1), "no transformation from its CRS"),
    ],
)
def test_what_has_no_longitude_is_said(crs: str | None, polygon: Any, sentence: str) -> None:
    with pytest.raises(NoLonLat, match=sentence):
        ToLonLat(rasterio.CRS.from_string(crs) if crs else None, 1e5, 1e3).polygons(np.array([polygon]))
