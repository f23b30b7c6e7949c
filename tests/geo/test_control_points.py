"""Scenes with ground control points: their areas, and the control points of results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from penstock.errors import InvalidInput
from penstock.processors.geo.read.gdal import rasterio, without_georeference
from penstock.processors.geo.tiling.plan import Box
from tests.geo.test_area_forms import UTM, feature, found, polygon
from tests.support.geo.scenes import NORTH_UP, pattern, read, segment, write_scene


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    return write_scene(tmp_path / "scene.tif", pattern(90, 100))


def with_points(path: Path, crs: str, *, count: int = 4) -> Path:
    """Write the scene of NORTH_UP with control points instead of its transform."""
    at = [(column, row) for row in np.linspace(0, 90, count) for column in np.linspace(0, 100, count)]
    x, y = np.array([NORTH_UP @ each for each in at]).T
    xs, ys = rasterio.warp.transform("EPSG:32633", crs, x, y)
    points = [
        rasterio.control.GroundControlPoint(row=row, col=column, x=px, y=py)
        for (column, row), px, py in zip(at, xs, ys, strict=True)
    ]
    return write_scene(path, pattern(90, 100), crs=rasterio.CRS.from_string(crs), gcps=points, transform=None)


@pytest.mark.parametrize("crs", ["EPSG:32633", "EPSG:4326"])
def test_the_area_of_a_scene_with_control_points_is_that_of_the_scene_with_a_transform(
    tmp_path: Path, scene: Path, crs: str
) -> None:
    area = feature(
        {
            "type": "Polygon",
            "coordinates": [[list(NORTH_UP @ at) for at in ((10.3, 5.2), (70.1, 20.4), (30.7, 81.1), (10.3, 5.2))]],
        },
        **UTM,
    )
    path = with_points(tmp_path / "points.tif", crs)
    expected, own = found(scene, area), found(path, area)
    whole = Box(0, 0, 90, 100)
    assert own.box == expected.box
    assert (own.mask(whole) != expected.mask(whole)).sum() == 0
    by_box = {"bbox": [15.01, 45.13, 15.03, 45.15]}
    assert found(path, by_box).box == found(scene, by_box).box


def test_the_results_of_an_area_have_the_control_points_of_its_pixels(tmp_path: Path) -> None:
    path = with_points(tmp_path / "points.tif", "EPSG:4326")
    whole, _ = segment(path, tmp_path / "whole", outputs=("classes",))
    part, _ = segment(path, tmp_path / "part", outputs=("classes",), area=feature(polygon(20, 30, 60, 70), **UTM))
    np.testing.assert_array_equal(
        read(part.artifacts["classes.tif"])[0], read(whole.artifacts["classes.tif"])[0][30:70, 20:60]
    )
    with without_georeference():
        with rasterio.open(whole.artifacts["classes.tif"]) as file:
            before, _ = file.gcps
        with rasterio.open(part.artifacts["classes.tif"]) as file:
            after, crs = file.gcps
    assert crs.to_epsg() == 4326
    assert [(p.row + 30, p.col + 20, p.x, p.y) for p in after] == [(p.row, p.col, p.x, p.y) for p in before]


@pytest.mark.parametrize("cut", [False, True])
def test_two_dates_with_control_points_have_a_change_within_an_area(tmp_path: Path, cut: bool) -> None:
    later = with_points(tmp_path / "later.tif", "EPSG:4326")
    with without_georeference(), rasterio.open(later) as file:
        numbers, (points, crs) = file.read(), file.gcps
    top, left = (7, 12) if cut else (0, 0)
    moved = [
        rasterio.control.GroundControlPoint(row=p.row - top, col=p.col - left, x=p.x, y=p.y, z=p.z) for p in points
    ]
    earlier = write_scene(tmp_path / "earlier.tif", (numbers + 1)[:, top:, left:], crs=crs, gcps=moved, transform=None)
    area = feature(polygon(20, 30, 60, 70), **UTM)
    change = {"of": ["class 1"], "before": {"scene": str(earlier)}}
    sink, _ = segment(later, tmp_path / "both", change=change, area=area, outputs=("classes", "change"))
    for name, path in (("classes.tif", later), ("before-classes.tif", earlier)):
        alone, _ = segment(path, tmp_path / f"of-{path.stem}", area=area, outputs=("classes",))
        np.testing.assert_array_equal(read(sink.artifacts[name]), read(alone.artifacts["classes.tif"]))
    now, both = sink.artifacts["classes.tif"], sink.artifacts["change.tif"]
    with without_georeference(), rasterio.open(now) as first, rasterio.open(both) as second:
        assert [(p.row, p.col, p.x, p.y) for p in first.gcps[0]] == [(p.row, p.col, p.x, p.y) for p in second.gcps[0]]


def test_a_scene_with_control_points_that_determine_nothing_has_no_area(tmp_path: Path) -> None:
    path = with_points(tmp_path / "points.tif", "EPSG:32633", count=1)
    with pytest.raises(InvalidInput, match="The area needs the scene's place"):
        found(path, {"bbox": [15, 45, 16, 46]})


def test_an_area_beside_a_scene_with_control_points_is_refused(tmp_path: Path) -> None:
    path = with_points(tmp_path / "points.tif", "EPSG:4326")
    with pytest.raises(InvalidInput, match="The area lies outside the scene: it spans 40 to 41"):
        found(path, {"bbox": [40, 5, 41, 6]})
