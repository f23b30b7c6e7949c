"""Coarse bands on a finer grid: correct pixel centres, no influence of nodata, unchanged valid area."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidInput
from penstock.processors.geo.read.gdal import Resampling, rasterio
from penstock.processors.geo.read.grids import Factor, finest, nesting
from penstock.processors.geo.read.resample import bilinear, taps
from tests.support.geo.grid import Grid


def resample(numbers: np.ndarray, valid: np.ndarray, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    height, width = valid.shape
    return bilinear(numbers, valid, taps(0, height * rows, rows, height), taps(0, width * columns, columns, width))


def by_definition(numbers: np.ndarray, valid: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Compute each pixel separately: the mean of its valid neighbours among four, weighted by distance."""
    height, width = valid.shape
    result = np.zeros((height * rows, width * columns))
    for i, j in np.ndindex(result.shape):
        y, x = (i + 0.5) / rows - 0.5, (j + 0.5) / columns - 0.5
        total = weights = 0.0
        for near_y, weight_y in ((math.floor(y), 1 - y % 1), (math.floor(y) + 1, y % 1)):
            for near_x, weight_x in ((math.floor(x), 1 - x % 1), (math.floor(x) + 1, x % 1)):
                at = min(max(near_y, 0), height - 1), min(max(near_x, 0), width - 1)
                if valid[at]:
                    total += weight_y * weight_x * numbers[at]
                    weights += weight_y * weight_x
        result[i, j] = total / weights if valid[i // rows, j // columns] else 0
    return result


@given(
    height=st.integers(1, 7),
    width=st.integers(1, 7),
    rows=st.integers(1, 6),
    columns=st.integers(1, 6),
    holes=st.sampled_from([0.0, 0.3, 0.9]),
    seed=st.integers(0, 999),
)
def test_values_are_those_of_the_definition(
    height: int, width: int, rows: int, columns: int, holes: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    numbers, valid = rng.integers(1, 10_000, (height, width)).astype(np.uint16), rng.random((height, width)) >= holes
    numbers[~valid] = 65_535
    found, known = resample(numbers[None], valid, rows, columns)
    np.testing.assert_array_equal(known, np.repeat(np.repeat(valid, rows, 0), columns, 1))
    np.testing.assert_allclose(found[0], by_definition(numbers, valid, rows, columns), rtol=1e-5)
    assert found.dtype == np.float32
    assert np.abs(found[0][known], where=True).max(initial=0) <= 10_000, "a no-data number bled into a value"


@pytest.mark.parametrize("factor", [2, 3, 6])
def test_centres_stay_where_they_are(factor: int) -> None:
    coarse = np.add.outer(np.arange(9.0) * 100, np.arange(8.0))[None]
    fine, _ = resample(coarse, np.ones((9, 8), bool), factor, factor)
    y, x = ((np.arange(size * factor) + 0.5) / factor - 0.5 for size in (9, 8))
    inner = slice(factor, -factor)
    np.testing.assert_allclose(fine[0][inner, inner], np.add.outer(y * 100, x)[inner, inner], rtol=1e-12)
    shifted = np.add.outer((y + 0.5 / factor) * 100, x)[inner, inner]
    assert not np.allclose(fine[0][inner, inner], shifted), "half a pixel aside would pass as well"


@pytest.mark.parametrize("factor", [2, 3, 6])
def test_gdal_finds_the_same(factor: int) -> None:
    from rasterio.warp import reproject  # after GDAL's settings

    coarse = np.random.default_rng(1).integers(0, 9999, (1, 20, 30)).astype(np.float32)
    grid = rasterio.Affine(20, 0, 500_000, 0, -20, 5_000_000)
    warped = np.zeros((1, 20 * factor, 30 * factor), np.float32)
    reproject(
        coarse,
        warped,
        src_transform=grid,
        src_crs="EPSG:32633",
        dst_transform=grid @ rasterio.Affine.scale(1 / factor),
        dst_crs="EPSG:32633",
        resampling=Resampling.bilinear,
    )
    fine, _ = resample(coarse, np.ones((20, 30), bool), factor, factor)
    inner = slice(factor, -factor)
    np.testing.assert_allclose(fine[:, inner, inner], warped[:, inner, inner], atol=0.02)


def test_what_cannot_be_a_number_in_float32_is_kept_exactly() -> None:
    numbers = np.array([[[2**31 - 1, 1]]], dtype=np.int32)
    found, _ = resample(numbers, np.ones((1, 2), bool), 1, 2)
    assert found.dtype == np.float64
    assert found[0, 0, 0] == 2**31 - 1


TEN = Grid(100, 60, rasterio.Affine(10, 0, 300_000, 0, -10, 5_000_000))


def coarser(rows: int, columns: int, **changes: object) -> Grid:
    values = {"height": -(-TEN.height // rows), "width": -(-TEN.width // columns), **changes}
    return Grid(transform=TEN.transform @ rasterio.Affine.scale(columns, rows), **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 2), (6, 6), (3, 3), (7, 7), (2, 1)])
def test_pixels_that_are_whole_multiples_nest(rows: int, columns: int) -> None:
    assert nesting(TEN, coarser(rows, columns), label="It") == Factor(rows, columns)


MOVED = rasterio.Affine.translation


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (coarser(2, 2, crs="EPSG:32634"), "It has EPSG:32634, but the finest file has EPSG:32633. Bring all"),
        (coarser(2, 2, crs=None), "It has no CRS"),
        (Grid(40, 24, TEN.transform @ rasterio.Affine.scale(2.5)), "do not nest .*: each covers 2.5 x 2.5"),
        (Grid(99, 60, TEN.transform @ MOVED(1, 2)), "a different extent .* column 1 and row 2. Crop all files"),
        (Grid(50, 30, MOVED(5, 0) @ coarser(2, 2).transform), "do not nest .* starting at column 0.5 and row 0"),
        (Grid(50, 30, MOVED(0, -0.2) @ coarser(2, 2).transform), "do not nest .* row 0.02"),
        (Grid(50, 30, coarser(2, 2).transform @ rasterio.Affine.rotation(3)), "do not nest"),
        (Grid(50, 30, coarser(2, 2).transform @ rasterio.Affine.scale(1, -1)), "do not nest"),
        (Grid(50, 30, coarser(2, 2).transform @ rasterio.Affine.scale(1.0003)), "do not nest"),
        (coarser(2, 2, height=49), "a different extent from the finest file: 30 x 49 pixels instead of 30 x 50"),
        (coarser(2, 2, width=31), "different extent"),
        (Grid(100, 60, None), "do not nest"),
    ],
)
def test_grids_that_do_not_fit_are_refused_with_what_differs(other: Grid, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        nesting(TEN, other, label="It")


def test_rounded_origins_still_nest() -> None:
    assert nesting(TEN, Grid(50, 30, MOVED(0.05, 0) @ coarser(2, 2).transform), label="It") == Factor(2, 2)


def test_a_grid_nests_in_itself_however_far_its_origin_is() -> None:
    far = Grid(100, 60, rasterio.Affine(1e-9, 3e-10, 1e9, 2e-10, -1e-9, -1e9))
    assert nesting(far, far, label="It") == Factor(1, 1)


def test_files_without_a_georeference_fit_when_their_sizes_do() -> None:
    bare = Grid(100, 60, None, crs=None)
    assert nesting(bare, bare, label="It") == Factor(1, 1)
    with pytest.raises(InvalidInput, match="different extent"):
        nesting(bare, Grid(50, 30, None, crs=None), label="It")


def test_the_finest_is_the_target_and_the_first_of_equals() -> None:
    assert finest([coarser(2, 2), TEN, coarser(6, 6), TEN]) == 1
    assert finest([Grid(5, 5, None), Grid(9, 9, None)]) == 1
