"""Areas of classes and their change, from class maps in files: grids, clouds, polygons, units."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from penstock.errors import InvalidInput
from penstock.intake.change_condition import parse_condition
from penstock.intake.item_area import NamedPolygon
from penstock.processors.geo.read.gdal import rasterio
from penstock.workers.keeper.class_changes import ClassMap, changes
from tests.support.stac_api import square

IDS = {"land": 0, "water": 1, "cloud": 2}
CONDITION = parse_condition("gained(water) > 1 m2 and lost(water) > 1 m2 and area(water) > 1 m2 ignoring cloud")
#: UTM zone 33 north of the equator, at its central meridian, where a pixel's area is known: scale 0.9996 squared.
UTM = ("EPSG:32633", rasterio.Affine(100, 0, 500_000, 0, -100, 5_000_000))
PIXEL_M2 = 1e4 / 0.9996**2


def class_map(path: Path, ids: npt.ArrayLike, crs: str = UTM[0], transform: Any = UTM[1]) -> ClassMap:
    data = np.asarray(ids, np.uint8)
    with rasterio.open(
        path, "w", driver="GTiff", width=data.shape[1], height=data.shape[0], count=1, dtype="uint8", crs=crs,
        transform=transform, nodata=255,
    ) as file:  # fmt: skip
        file.write(data, 1)
    return ClassMap(path, IDS)


def quantities(found: Any) -> dict[str, float]:
    return {str(quantity): m2 / PIXEL_M2 for quantity, m2 in found.quantities.items()}


def test_gain_and_loss_count_pixels_known_at_both_dates_alone(tmp_path: Path) -> None:
    before = class_map(tmp_path / "a.tif", [[0, 0, 1, 1, 0, 255]])
    after = class_map(tmp_path / "b.tif", [[1, 0, 0, 1, 2, 1]])
    [found] = changes(CONDITION, after, before, [])
    assert quantities(found) == pytest.approx({"gained(water)": 1, "lost(water)": 1, "area(water)": 2}, rel=1e-3)
    assert found.counted_m2 / PIXEL_M2 == pytest.approx(4, rel=1e-3)
    assert found.name == "everything"


def test_without_an_earlier_map_there_is_no_change(tmp_path: Path) -> None:
    [found] = changes(CONDITION, class_map(tmp_path / "a.tif", [[1, 1, 2]]), None, [])
    assert quantities(found) == pytest.approx({"gained(water)": 0, "lost(water)": 0, "area(water)": 2}, rel=1e-3)


def test_each_polygon_counts_pixels_by_the_share_that_it_covers(tmp_path: Path) -> None:
    degrees = ("EPSG:4326", rasterio.Affine(0.01, 0, 10, 0, -0.01, 45))
    before = class_map(tmp_path / "a.tif", np.zeros((10, 10)), *degrees)
    ids = np.zeros((10, 10))
    ids[:, :3] = 1
    after = class_map(tmp_path / "b.tif", ids, *degrees)
    west, east = NamedPolygon("west", square(10, 44.9, 0.055)), NamedPolygon("east", square(10.025, 44.9, 0.055))
    first, second = changes(CONDITION, after, before, [west, east])
    assert (first.name, second.name) == ("west", "east")
    gained = CONDITION.quantities[0]
    # A degree of longitude at 44.925° N has 78.95 km, one of latitude 111.13 km: pixels of 0.01°.
    pixel_m2 = 789.5 * 1111.3
    assert first.quantities[gained] == pytest.approx(3 * 5.5 * pixel_m2, rel=2e-3)
    assert second.quantities[gained] == pytest.approx(0.5 * 5.5 * pixel_m2, rel=2e-3)
    assert first.counted_m2 == pytest.approx(second.counted_m2)


def test_an_earlier_map_of_another_extent_and_grid_is_laid_on_the_later_one(tmp_path: Path) -> None:
    shifted = UTM[1] @ rasterio.Affine.translation(-2, -1)
    before = class_map(tmp_path / "a.tif", np.ones((3, 5)), transform=shifted)  # covers columns 0 to 2
    after = class_map(tmp_path / "b.tif", [[0, 1, 0, 0, 1]])
    [found] = changes(CONDITION, after, before, [])
    assert quantities(found) == pytest.approx({"gained(water)": 0, "lost(water)": 2, "area(water)": 1}, rel=1e-3)
    coarse = class_map(tmp_path / "c.tif", [[1]], transform=UTM[1] @ rasterio.Affine.scale(5))
    [found] = changes(CONDITION, after, coarse, [])
    assert quantities(found)["lost(water)"] == pytest.approx(3, rel=1e-3)


def test_maps_of_many_strips_have_the_same_areas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    before, after = (class_map(tmp_path / f"{name}.tif", rng.integers(0, 3, (64, 64))) for name in "ab")
    polygon = [NamedPolygon("a", square(15, 45.1, 0.05))]
    [whole] = changes(CONDITION, after, before, polygon)
    monkeypatch.setattr("penstock.workers.keeper.class_changes._STRIP_PX", 64 * 5)
    [stripped] = changes(CONDITION, after, before, polygon)
    for quantity, m2 in whole.quantities.items():
        assert m2 > 0
        assert stripped.quantities[quantity] == pytest.approx(m2, rel=1e-6)


def test_unknown_classes_and_maps_without_a_place_are_errors(tmp_path: Path) -> None:
    after = class_map(tmp_path / "a.tif", [[1]])
    with pytest.raises(InvalidInput, match="no class 'lava'; its classes are land, water, cloud"):
        changes(parse_condition("area(lava) > 1 m2"), after, None, [])
    nowhere = class_map(tmp_path / "b.tif", [[1]], crs=None)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="no usable georeference"):
        changes(CONDITION, nowhere, None, [])
