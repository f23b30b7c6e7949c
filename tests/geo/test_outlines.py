"""Polygons of a class raster do not depend on how the raster is divided into strips."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import rasterio.features
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.processors.geo.options import NODATA
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.write.outlines import TooRagged, outlines
from tests.support.geo.scenes import write_scene

Map = npt.NDArray[np.uint8]


@st.composite
def maps(draw: st.DrawFn) -> Map:
    """Return a map with blobs of four classes and nodata, 1 to 40 pixels per side."""
    height, width = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    coarse = rng.integers(0, 5, (height, width), np.uint8)
    grain = draw(st.integers(1, 6))
    ids = np.kron(coarse, np.ones((grain, grain), np.uint8))[:height, :width]
    noisy = rng.random((height, width)) < draw(st.sampled_from([0, 0.1, 0.5]))
    ids[noisy] = rng.integers(0, 5, int(noisy.sum()))
    ids[ids == 4] = NODATA
    return ids


def write_map(path: Path, ids: Map) -> Path:
    return write_scene(path, ids[None], nodata=NODATA, tiled=True, blockxsize=16, blockysize=16)


def found(path: Path, strip_rows: int | None = None) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    parts = list(outlines(path, strip_rows=strip_rows))
    return np.concatenate([part.classes for part in parts]), np.concatenate([part.polygons for part in parts])


def described(classes: npt.NDArray[Any], polygons: npt.NDArray[Any]) -> list[tuple[int, str]]:
    """Return polygons in a normal form, independent of their order and first point."""
    return sorted(zip(classes.tolist(), shapely.to_wkt(shapely.normalize(polygons)).tolist(), strict=True))


def whole(ids: Map) -> list[tuple[int, str]]:
    """Return GDAL's polygons of the whole map."""
    shapes = list(rasterio.features.shapes(ids, mask=ids != NODATA, connectivity=4))
    classes, polygons = [int(v) for _, v in shapes], [shapely.geometry.shape(s) for s, _ in shapes]
    return described(np.array(classes, dtype=int), np.array(polygons, dtype=object))


@settings(max_examples=60, deadline=None)
@given(ids=maps(), strip_rows=st.integers(1, 45))
def test_strips_give_the_polygons_of_the_whole_map_point_by_point(
    ids: Map, strip_rows: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write_map(tmp_path_factory.mktemp("map") / "c.tif", ids)
    classes, polygons = found(path, strip_rows)
    assert described(classes, polygons) == whole(ids)
    assert shapely.is_valid(polygons).all()
    for label in range(4):
        assert shapely.area(polygons[classes == label]).sum() == (ids == label).sum()
    drawn = [*zip(polygons, classes.tolist(), strict=True)]
    again = rasterio.features.rasterize(drawn, ids.shape, NODATA) if drawn else np.full(ids.shape, NODATA)
    np.testing.assert_array_equal(again, ids)


def test_strips_on_their_own_would_cut_polygons(tmp_path: Path) -> None:
    ids = np.zeros((40, 30), np.uint8)
    ids[5:35, 10:20], ids[15:25, 13:17] = 1, 2
    _, polygons = found(write_map(tmp_path / "c.tif", ids), 10)
    assert len(polygons) == 3
    assert sum(len(whole(ids[top : top + 10])) for top in range(0, 40, 10)) > 3
    assert sorted(shapely.get_num_interior_rings(polygons).tolist()) == [0, 1, 1]


def test_pixels_that_meet_at_a_corner_are_two_polygons(tmp_path: Path) -> None:
    ids = np.array([[0, 1], [1, 0]], np.uint8)
    for strip_rows in (1, 2):
        classes, _ = found(write_map(tmp_path / "c.tif", ids), strip_rows)
        assert sorted(classes.tolist()) == [0, 0, 1, 1]


def test_a_spiral_over_many_strips_is_one_polygon(tmp_path: Path) -> None:
    ids = np.zeros((63, 63), np.uint8)
    for ring in range(0, 30, 4):
        ids[ring, ring : 63 - ring] = ids[62 - ring, ring : 63 - ring] = 1
        ids[ring : 63 - ring, ring] = ids[ring : 63 - ring, 62 - ring] = 1
        ids[ring + 1, ring] = 0
        ids[ring + 2, max(0, ring - 4) : ring + 1] = 1
    for strip_rows in (1, 5, 62):
        assert described(*found(write_map(tmp_path / "c.tif", ids), strip_rows)) == whole(ids)


def test_a_map_without_data_has_no_polygons(tmp_path: Path) -> None:
    _, polygons = found(write_map(tmp_path / "c.tif", np.full((50, 20), NODATA, np.uint8)), 16)
    assert polygons.size == 0


def test_noise_is_refused_before_gdal_makes_millions_of_polygons_of_it(tmp_path: Path) -> None:
    ids = (np.indices((1100, 1100)).sum(axis=0) % 2).astype(np.uint8)
    with pytest.raises(TooRagged, match="noise around row 0"):
        found(write_map(tmp_path / "c.tif", ids))
