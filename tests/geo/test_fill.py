"""Positive fill that nobody declared is said in the result, with what to do; what looks like data is left in peace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from penstock.processors.geo.fill import count_fill, notes_of_fill
from tests.geo.scenes import GREY, make_model, one_hot, read, segment, write_scene

BANDS = [{**GREY[0], "name": name} for name in ("red", "nir", "swir16")]
MODEL = make_model(bands=BANDS, tile_px=64)
CORNER = (slice(0, 70), slice(100, 200))


def scene(dtype: str = "uint16") -> npt.NDArray[Any]:
    return np.random.default_rng(1).integers(1, 200, (3, 150, 200)).astype(dtype)


def first(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return one_hot(np.zeros(pixels.shape[1:]))


def notes(path: Path, folder: Path, **request: Any) -> list[str]:
    _, result = segment(path, folder, model=MODEL, **request)
    assert result.data is not None
    found: list[str] = result.data["notes"]
    return found


@pytest.mark.parametrize(
    ("dtype", "number"), [("uint8", 255), ("int16", 32_767), ("uint16", 32_767), ("uint16", 65_535), ("float32", 1e20)]
)
def test_fill_in_all_bands_is_said_and_stays_data(dtype: str, number: float, tmp_path: Path) -> None:
    numbers = scene(dtype)
    numbers[:, *CORNER] = number
    path = write_scene(tmp_path / "s.tif", numbers, descriptions=("red", "nir", "swir16"))
    (note,) = notes(path, tmp_path / "out", network=first)
    assert f'"radiometry": {{"nodata": {number:.9g}}}' in note
    assert "red, nir, swir16" in note
    assert (read(tmp_path / "out" / "classes.tif") != 255).all()


def test_what_is_declared_is_not_said(tmp_path: Path) -> None:
    numbers = scene()
    numbers[:, *CORNER] = 65_535
    names = ("red", "nir", "swir16")
    assert notes(write_scene(tmp_path / "a.tif", numbers, descriptions=names, nodata=65_535), tmp_path / "a") == []
    path = write_scene(tmp_path / "b.tif", numbers, descriptions=names)
    assert notes(path, tmp_path / "b", radiometry={"nodata": 65_535}) == []


@pytest.mark.parametrize("bands", [[0], [0, 1]])
def test_clouds_that_saturate_some_bands_are_not_said(bands: list[int], tmp_path: Path) -> None:
    numbers = scene()
    for band in bands:
        numbers[band][CORNER] = 65_535
    assert notes(write_scene(tmp_path / "s.tif", numbers, descriptions=("red", "nir", "swir16")), tmp_path / "o") == []


def test_specks_small_patches_and_single_bands_are_not_said() -> None:
    specks = np.full((3, 160, 160), 65_535, np.uint16)
    specks[:, ::15, ::15] = 7
    everywhere = np.ones((160, 160), bool)
    assert not count_fill(specks, everywhere)
    assert not count_fill(np.full((1, 160, 160), 65_535, np.uint16), everywhere)
    small = scene()
    small[:, :16, :16] = 65_535
    fill = count_fill(small, np.ones(small.shape[1:], bool))
    assert fill == {65_535: 256}
    assert list(notes_of_fill(fill, 150 * 200, ["a", "b", "c"])) == []


def test_pixels_without_data_do_not_count() -> None:
    numbers = np.full((2, 64, 64), 255, np.uint8)
    valid = np.ones((64, 64), bool)
    assert count_fill(numbers, valid) == {255: 64 * 64}
    valid[:16] = False
    assert count_fill(numbers, valid) == {255: 48 * 64}
