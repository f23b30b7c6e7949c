"""Areas are computed on the ellipsoid for every CRS."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyproj import CRS, Transformer

from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.tiling.plan import Box
from penstock.processors.geo.write.area import PixelArea, pixel_area
from tests.support.geo.scenes import NORTH_UP, segment, write_scene

Affine = rasterio.Affine


def polygon_m2(transform: Any, box: Box, crs: str) -> float:
    """Return the geodesic area of a box's outline with a point at each pixel, because parallels are not geodesics."""
    top, left, bottom, right = box.top, box.left, box.bottom, box.right
    outline = [(x, top) for x in range(left, right)] + [(right, y) for y in range(top, bottom)]
    outline += [(x, bottom) for x in range(right, left, -1)] + [(left, y) for y in range(bottom, top, -1)]
    a, b, c, d, e, f = tuple(transform)[:6]
    xs, ys = [a * x + b * y + c for x, y in outline], [d * x + e * y + f for x, y in outline]
    geodetic = CRS(crs).geodetic_crs
    angles = Transformer.from_crs(CRS(crs), geodetic, always_xy=True).transform(xs, ys)
    degrees = np.degrees(geodetic.axis_info[0].unit_conversion_factor)
    return abs(geodetic.get_geod().polygon_area_perimeter(*(np.array(each) * degrees for each in angles))[0])


def found_m2(area: PixelArea, box: Box) -> tuple[float, float]:
    """Return a box's area as the sum of its pixels, and from its corners."""
    rows, columns = np.array([box.top, box.bottom]), np.array([box.left, box.right])
    above = area.above(*map(np.ravel, np.meshgrid(rows, columns, indexing="ij")))
    return area.of(box).sum(), above @ [1, -1, -1, 1]


@pytest.mark.parametrize(
    ("crs", "transform"),
    [
        pytest.param("EPSG:4326", Affine(5.4e-4, 0, 47.02, 0, -5.2e-4, -15.31), id="Betsiboka"),
        pytest.param("EPSG:4326", Affine(0.01, 0, 10, 0, -0.01, 71), id="far north"),
        pytest.param("EPSG:4326", Affine(0.01, 0, 10, 0, 0.01, -89.5), id="to the south pole"),
        pytest.param("EPSG:4326", Affine(0.5, 0, -180, 0, 0.5, -60), id="half degrees"),
        pytest.param("EPSG:4326", Affine(0.01, 0.003, 10, 0.004, -0.01, 45), id="rotated"),
        pytest.param("EPSG:4267", Affine(0.01, 0, -100, 0, -0.01, 40), id="NAD27"),
        pytest.param("EPSG:4326", Affine(0.01, 0, 179.9, 0, -0.01, -17), id="antimeridian"),
        pytest.param("EPSG:3857", Affine(10, 0, 1_200_000, 0, -10, 8_400_000), id="web Mercator north"),
        pytest.param("EPSG:3857", Affine(10, 0, 1_200_000, 0, -10, 100), id="web Mercator at the equator"),
        pytest.param("EPSG:3857", Affine(10, 3, 1_200_000, 4, -10, -15_000_000), id="web Mercator rotated"),
        pytest.param("EPSG:3395", Affine(10, 0, 1_200_000, 0, 10, 8_400_000), id="Mercator"),
        pytest.param("EPSG:32633", Affine(10, 0, 166_000, 0, -10, 5_000_000), id="UTM's edge"),
        pytest.param("EPSG:32633", Affine(500, 0, 300_000, 0, -500, 5_000_000), id="UTM, 60 km"),
        pytest.param("EPSG:32760", Affine(7, 7, 300_000, 7, -7, 8_000_000), id="UTM south, rotated"),
        pytest.param("EPSG:3413", Affine(1000, 0, 200_000, 0, -1000, -900_000), id="polar stereographic"),
        pytest.param("EPSG:3031", Affine(100, 0, -7000, 0, -100, 4000), id="around the south pole"),
        pytest.param("EPSG:2154", Affine(10, 0, 700_000, 0, -10, 6_600_000), id="Lambert conic"),
        pytest.param("EPSG:3035", Affine(1000, 0, 4_321_000, 0, -1000, 3_210_000), id="equal area"),
        pytest.param("EPSG:2263", Affine(10, 0, 1_000_000, 0, -10, 200_000), id="feet"),
        pytest.param("EPSG:27571", Affine(10, 0, 600_000, 0, -10, 1_200_000), id="grads below"),
        pytest.param("EPSG:4807", Affine(0.01, 0, 1, 0, -0.01, 50), id="grads"),
        pytest.param("EPSG:8352", Affine(10, 0, -500_000, 0, -10, -1_200_000), id="Krovak"),
    ],
)
def test_areas_are_those_on_the_ellipsoid_whatever_the_crs(crs: str, transform: Any) -> None:
    area = pixel_area(rasterio.CRS.from_string(crs), transform, 70, 120)
    assert area is not None
    box = Box(20, 30, 60, 110)
    by_pixels, by_corners = found_m2(area, box)
    # Each area is measured at the pixel's centre: the error for half a degree is 6e-6.
    assert by_pixels == pytest.approx(polygon_m2(transform, box, crs), rel=2e-5)
    assert by_corners == pytest.approx(by_pixels, rel=1e-9)


@pytest.mark.parametrize("crs", ["EPSG:32633", "EPSG:3857", "EPSG:3413"])
@settings(max_examples=25, deadline=None)
@given(
    side=st.integers(1, 20_000),
    pixel=st.floats(0.3, 100),
    turn=st.floats(0, 360),
    place=st.tuples(st.floats(-1e5, 1e5), st.floats(1e6, 4e6)),
    data=st.data(),
)
def test_what_is_between_nodes_is_as_exact(
    crs: str, side: int, pixel: float, turn: float, place: tuple[float, float], data: st.DataObject
) -> None:
    transform = Affine.translation(500_000 + place[0], place[1]) @ Affine.rotation(turn) @ Affine.scale(pixel, -pixel)
    area = pixel_area(rasterio.CRS.from_string(crs), transform, side, side)
    assert area is not None
    top, left = (data.draw(st.integers(0, side - 1)) for _ in range(2))
    box = Box(top, left, min(side, top + 300), min(side, left + 40))
    by_pixels, by_corners = found_m2(area, box)
    # `polygon_area_perimeter` itself has an error of about 0.1 m² per point.
    slack = 0.1 * (box.height + box.width)
    assert by_pixels == pytest.approx(polygon_m2(transform, box, crs), rel=1e-5, abs=slack)
    assert by_corners == pytest.approx(by_pixels, rel=1e-9, abs=2e-3)


@given(st.lists(st.tuples(*[st.integers(0, 700)] * 4), min_size=1, max_size=200))
def test_the_area_of_a_pixel_has_the_same_bits_whatever_was_asked_before(boxes: list[tuple[int, ...]]) -> None:
    def area() -> PixelArea:
        found = pixel_area(rasterio.CRS.from_epsg(32633), Affine(100, 0, 300_000, 0, -100, 5_000_000), 800, 800)
        assert found is not None
        return found

    asked, fresh = area(), area()
    for top, left, height, width in boxes:
        box = Box(top, left, min(800, top + height + 1), min(800, left + width + 1))
        before = asked.of(box)
        assert asked.of(box).tobytes() == before.tobytes()
    *_, last = (Box(t, a, min(800, t + h + 1), min(800, a + w + 1)) for t, a, h, w in boxes)
    assert asked.of(last).tobytes() == fresh.of(last).tobytes()


def test_a_map_of_the_world_is_the_earths_surface() -> None:
    area = pixel_area(rasterio.CRS.from_epsg(4326), Affine(0.05, 0, -180, 0, -0.05, 90.025), 3601, 7200)
    assert area is not None
    by_pixels, by_corners = found_m2(area, Box(0, 0, 3601, 7200))
    assert by_pixels == pytest.approx(510_065_621_724_088, rel=1e-4)
    assert by_corners == pytest.approx(by_pixels, rel=1e-9)


def test_where_the_crs_has_no_place_on_the_earth_there_is_no_area() -> None:
    transform = Affine(100_000, 0, -18_100_000, 0, -100_000, 9_100_000)  # the corners of an oval
    area = pixel_area(rasterio.CRS.from_string("+proj=moll +R=6371007.181"), transform, 182, 362)
    assert area is not None
    m2 = area.of(Box(0, 0, 182, 362))
    assert np.isnan(m2[0, 0])
    # In this equal-area projection every pixel with its centre on the earth has an area, except some at the rim.
    known = m2[~np.isnan(m2)]
    assert len(known) * 1e10 == pytest.approx(4 * np.pi * 6_371_007.181**2, rel=2e-3)
    assert np.median(known) == pytest.approx(1e10, rel=1e-6)
    assert np.isnan(area.above(np.array([182]), np.array([362]))).all()


def test_without_a_crs_or_a_transform_there_is_no_area() -> None:
    assert pixel_area(None, NORTH_UP, 10, 10) is None
    assert pixel_area(rasterio.CRS.from_epsg(4326), None, 10, 10) is None


def test_statistics_count_what_the_map_holds(tmp_path: Path) -> None:
    numbers = np.zeros((1, 100, 150), np.uint8)
    numbers[0, :40], numbers[0, 40:60, :50] = 6, 3
    path = write_scene(tmp_path / "s.tif", numbers, nodata=0)
    sink, result = segment(path, tmp_path / "out")
    stats = json.loads(sink.artifacts["stats.json"].read_text())
    assert stats == result.data
    assert (stats["pixels"], stats["valid_pixels"], stats["nodata_pixels"]) == (15_000, 7000, 8000)
    counted = [(label["id"], label["name"], label["pixels"]) for label in stats["classes"]]
    assert counted[1] == (1, "class 1", 6000)
    assert counted[3] == (3, "class 3", 1000)
    expected = [polygon_m2(NORTH_UP, box, "EPSG:32633") for box in (Box(0, 0, 40, 150), Box(40, 0, 60, 50))]
    assert [stats["classes"][i]["area_m2"] for i in (1, 3)] == pytest.approx(expected, rel=1e-5)
    assert [pixels for _, _, pixels in counted] == [0, 6000, 0, 1000, 0]
    assert [label["percent"] for label in stats["classes"]] == [0, 85.7143, 0, 14.2857, 0]
    assert stats["area_method"] == "geodesic"
    assert stats["model"] == {"name": "toy", "revision": "1"}
    utm = {"name": "EPSG:32633", "proj4": "+proj=utm +zone=33 +datum=WGS84 +units=m +no_defs +type=crs"}
    assert stats["scene"] == {"width": 150, "height": 100, "crs": utm, "etag": "etag of s.tif"}
    assert stats["bands"] == [{"name": "grey", "index": 1, "description": None}]
    assert stats["radiometry"] == {
        "scale": 1,
        "offset": 0,
        "source": "model default",
        "nodata": 0,
        "nodata_source": "file",
        "mask": "nodata",
    }


def test_geographic_areas_are_summed_over_tiles(tmp_path: Path) -> None:
    transform = Affine(0.01, 0, 10, 0, -0.01, 60)
    path = write_scene(tmp_path / "s.tif", np.full((1, 200, 150), 6, np.uint8), crs="EPSG:4326", transform=transform)
    _, result = segment(path, tmp_path / "out")
    assert result.data is not None
    expected = polygon_m2(transform, Box(0, 0, 200, 150), "EPSG:4326")
    assert result.data["classes"][1]["area_m2"] == pytest.approx(expected, rel=1e-5)
    assert result.data["area_method"] == "geodesic"
