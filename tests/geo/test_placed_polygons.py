"""Polygons of another CRS lie on a scene's grid where a dense outline lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shapely
from pyproj import CRS, Transformer
from pyproj.exceptions import ProjError

from penstock.errors import InvalidInput
from penstock.models import Limits
from penstock.processors.geo.read.placed_polygons import Subject, are_degrees, ground_of, inside_scene, place_shape
from penstock.processors.geo.read.raster import Scene, read_scene
from tests.support.geo.scenes import NORTH_UP, write_scene

THINGS = Subject("The thing", "/input/thing")
WGS84 = CRS.from_epsg(4326)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return read_scene(write_scene(tmp_path / "scene.tif", np.ones((1, 400, 300), np.uint8)), Limits())


def test_edges_bend_as_dense_outlines_do(scene: Scene) -> None:
    to_utm = Transformer.from_crs("EPSG:4326", "EPSG:32633", always_xy=True)

    def place(xy: Any) -> Any:
        return np.stack(~NORTH_UP @ to_utm.transform(*xy.T), axis=1)

    shape = shapely.box(10, 40, 20, 50)  # 8 degrees of longitude bend by 20 km in UTM
    placed = place_shape(shape, WGS84, ground_of(scene, THINGS), THINGS)
    dense = shapely.transform(shapely.segmentize(shape, 0.001), place)
    assert shapely.hausdorff_distance(placed.boundary, dense.boundary) < 0.05
    assert len(shapely.get_coordinates(placed)) < len(shapely.get_coordinates(dense)) / 5


def test_a_shape_without_a_place_is_an_error_that_the_caller_words(scene: Scene) -> None:
    with pytest.raises(ProjError):
        place_shape(shapely.box(105, 0, 106, 1), WGS84, ground_of(scene, THINGS), THINGS)


def test_only_the_part_in_the_scene_is_kept(scene: Scene) -> None:
    shape = shapely.box(-10, -10, 20, 30)
    inside = inside_scene(shape, ground_of(scene, THINGS), scene.height, scene.width)
    assert inside.equals(shapely.box(0, 0, 20, 30))


def test_bounds_in_metres_are_no_degrees() -> None:
    assert are_degrees((-190, -90, 190, 90), WGS84)
    assert not are_degrees((500_000, 4_000_000, 600_000, 5_000_000), WGS84)


def test_errors_name_their_subject(tmp_path: Path) -> None:
    nowhere = read_scene(
        write_scene(tmp_path / "a.tif", np.ones((1, 4, 4), np.uint8), crs=None, transform=None), Limits()
    )
    with pytest.raises(InvalidInput, match="The thing needs a scene with a CRS") as caught:
        ground_of(nowhere, THINGS)
    assert [issue.pointer for issue in caught.value.errors] == ["/input/thing"]
