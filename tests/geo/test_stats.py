"""Areas are those of the ellipsoid where coordinates are angles, and of the plane where they are lengths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyproj import Geod

from penstock.processors.geo.gdal import rasterio
from penstock.processors.geo.plan import Box
from penstock.processors.geo.stats import pixel_area
from tests.geo.scenes import NORTH_UP, segment, write_scene

Affine = rasterio.Affine


def polygon_m2(transform: Any, box: Box, ellipsoid: str) -> float:
    """Return the geodesic area of a box's outline, walked pixel by pixel (edges of parallels are no geodesics)."""
    top, left, bottom, right = box.top, box.left, box.bottom, box.right
    outline = [(x, top) for x in range(left, right)] + [(right, y) for y in range(top, bottom)]
    outline += [(x, bottom) for x in range(right, left, -1)] + [(left, y) for y in range(bottom, top, -1)]
    a, b, c, d, e, f = tuple(transform)[:6]
    longitudes = [a * x + b * y + c for x, y in outline]
    latitudes = [d * x + e * y + f for x, y in outline]
    return abs(Geod(ellps=ellipsoid).polygon_area_perimeter(longitudes, latitudes)[0])


@pytest.mark.parametrize(
    ("crs", "transform", "ellipsoid"),
    [
        ("EPSG:4326", Affine(5.4e-4, 0, 47.02, 0, -5.2e-4, -15.31), "WGS84"),
        ("EPSG:4326", Affine(0.01, 0, 10, 0, -0.01, 71), "WGS84"),
        ("EPSG:4326", Affine(0.5, 0, -180, 0, 0.5, -60), "WGS84"),
        ("EPSG:4326", Affine(0.01, 0.003, 10, 0.004, -0.01, 45), "WGS84"),
        ("EPSG:4267", Affine(0.01, 0, -100, 0, -0.01, 40), "clrk66"),
        ("EPSG:4326", Affine(0.01, 0, 179.9, 0, -0.01, -17), "WGS84"),
    ],
    ids=["Betsiboka", "far north", "half degrees", "rotated", "NAD27", "antimeridian"],
)
def test_geodesic_area_is_right_within_a_tenth_of_a_percent(crs: str, transform: Any, ellipsoid: str) -> None:
    area = pixel_area(rasterio.CRS.from_string(crs), transform)
    assert area is not None
    assert area.method == "geodesic"
    box = Box(20, 30, 60, 110)
    found = np.broadcast_to(area.of(box), (box.height, box.width)).sum()
    assert found == pytest.approx(polygon_m2(transform, box, ellipsoid), rel=1e-3)


def test_lengths_in_feet_become_square_metres() -> None:
    area = pixel_area(rasterio.CRS.from_epsg(2263), Affine(10, 0, 0, 0, -10, 0))
    assert area is not None
    assert float(area.of(Box(0, 0, 1, 1)).item()) == pytest.approx(100 * (1200 / 3937) ** 2)


def test_without_a_crs_or_a_transform_there_is_no_area() -> None:
    assert pixel_area(None, NORTH_UP) is None
    assert pixel_area(rasterio.CRS.from_epsg(4326), None) is None


def test_statistics_count_what_the_map_holds(tmp_path: Path) -> None:
    numbers = np.zeros((1, 100, 150), np.uint8)
    numbers[0, :40], numbers[0, 40:60, :50] = 6, 3
    path = write_scene(tmp_path / "s.tif", numbers, nodata=0)
    sink, result = segment(path, tmp_path / "out")
    stats = json.loads(sink.artifacts["stats.json"].read_text())
    assert stats == result.data
    assert (stats["pixels"], stats["valid_pixels"], stats["nodata_pixels"]) == (15_000, 7000, 8000)
    counted = [(label["id"], label["name"], label["pixels"], label["area_m2"]) for label in stats["classes"]]
    assert counted[1] == (1, "class 1", 6000, 6000 * 900)
    assert counted[3] == (3, "class 3", 1000, 1000 * 900)
    assert [pixels for _, _, pixels, _ in counted] == [0, 6000, 0, 1000, 0]
    assert [label["percent"] for label in stats["classes"]] == [0, 85.7143, 0, 14.2857, 0]
    assert stats["area_method"] == "projected"
    assert stats["model"] == {"name": "toy", "revision": "1"}
    assert stats["scene"] == {"width": 150, "height": 100, "etag": "etag of s.tif"}
    assert stats["bands"] == [{"name": "grey", "index": 1, "description": None}]
    assert stats["radiometry"] == {
        "scale": 1,
        "offset": 0,
        "source": "model default",
        "nodata": 0,
        "nodata_source": "file",
    }


def test_geographic_areas_are_summed_over_tiles(tmp_path: Path) -> None:
    transform = Affine(0.01, 0, 10, 0, -0.01, 60)
    path = write_scene(tmp_path / "s.tif", np.full((1, 200, 150), 6, np.uint8), crs="EPSG:4326", transform=transform)
    _, result = segment(path, tmp_path / "out")
    assert result.data is not None
    expected = polygon_m2(transform, Box(0, 0, 200, 150), "WGS84")
    assert result.data["classes"][1]["area_m2"] == pytest.approx(expected, rel=1e-3)
    assert result.data["area_method"] == "geodesic"
