"""Rows of a partial file are fetched while they are read: no pixel is ever that of a hole."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import FetchFailed
from penstock.models import Limits
from penstock.processors.geo.read.raster import FileRows, read_scene
from penstock.processors.geo.read.stepped_file import SteppedFile
from penstock.processors.geo.read.tiff_ranges import open_partial
from penstock.processors.geo.tiling.plan import Box
from tests.geo.test_ranges import LAYOUTS, PartialFiles, write
from tests.support.geo.scenes import read

#: Bytes of a step: a few rows of blocks in the files of 1 MB.
STEP_BYTES = 100_000


class Reader:
    """A reader of all bands of a partial copy of a file."""

    def __init__(self, path: Path, folder: Path, box: Box) -> None:
        self.media = PartialFiles(folder)
        tiff = open_partial(self.media, str(path))
        assert tiff is not None
        copy = self.media.path(str(path))
        scene = read_scene(copy, Limits())
        self.first_bytes = self.media.filled_bytes
        bands = range(1, scene.count + 1)
        self.fetching = ThreadPoolExecutor(1)
        self.file = SteppedFile(copy, scene, tiff, box, bands, self.fetching, step_bytes=STEP_BYTES)
        self.rows = FileRows(self.file.at, scene, bands, [None] * scene.count, filled=box)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.fetching.shutdown()
        self.file.close()

    def read(self, box: Box) -> tuple[Any, Any]:
        """Return numbers and validity of a box."""
        chunks = list(self.rows.read(box))
        return np.concatenate([some for _, some, _ in chunks], axis=1), np.concatenate([v for _, _, v in chunks])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_has_the_pixels_of_the_whole_file_step_by_step(layout: str, tmp_path: Path) -> None:
    path, box = write(tmp_path / "scene.tif", **LAYOUTS[layout]), Box(100, 200, 850, 900)
    masked = bool(LAYOUTS[layout].get("mask"))
    with Reader(path, tmp_path / "partial", box) as reader:
        numbers, valid = reader.read(box)
    np.testing.assert_array_equal(numbers[:, valid], read(path)[:, 100:850, 200:900][:, valid])
    assert valid.mean() == pytest.approx(0.92 if masked else 1, abs=0.01)
    # JPEG and LERC are lossy or small; in each layout a band has several steps.
    assert reader.media.filled_bytes - reader.first_bytes > 2 * STEP_BYTES


def test_the_first_rows_need_no_more_than_their_step_and_the_next_one(tmp_path: Path) -> None:
    path, box = write(tmp_path / "scene.tif"), Box(0, 0, 900, 1100)
    with Reader(path, tmp_path / "partial", box) as reader:
        numbers, _ = reader.read(Box(0, 0, 100, 1100))
        reader.fetching.submit(lambda: None).result()  # behind the next step
        fetched = reader.media.filled_bytes - reader.first_bytes
    np.testing.assert_array_equal(numbers, read(path)[:, :100])
    assert fetched < 0.4 * path.stat().st_size


def test_boxes_in_any_order_have_their_pixels(tmp_path: Path) -> None:
    path, box = write(tmp_path / "scene.tif", compress="deflate"), Box(0, 0, 900, 1100)
    whole, rng = read(path), np.random.default_rng(7)
    with Reader(path, tmp_path / "partial", box) as reader:
        for _ in range(30):
            top, left = int(rng.integers(0, 880)), int(rng.integers(0, 1080))
            small = Box(top, left, min(900, top + int(rng.integers(1, 300))), min(1100, left + 200))
            numbers, valid = reader.read(small)
            np.testing.assert_array_equal(numbers, whole[:, small.top : small.bottom, small.left : small.right])
            assert valid.all()


def test_a_step_that_cannot_be_fetched_is_an_error_at_its_rows(tmp_path: Path) -> None:
    path, box = write(tmp_path / "scene.tif"), Box(0, 0, 900, 1100)
    with Reader(path, tmp_path / "partial", box) as reader:
        reader.read(Box(0, 0, 100, 1100))
        reader.fetching.submit(lambda: None).result()

        def fails(*_: Any, **__: Any) -> None:
            raise FetchFailed("the store is away")

        reader.media.fill = fails  # type: ignore[method-assign]
        numbers, _ = reader.read(Box(100, 0, 200, 1100))  # its step was fetched with the first one
        np.testing.assert_array_equal(numbers, read(path)[:, 100:200])
        with pytest.raises(FetchFailed):
            reader.read(Box(200, 0, 900, 1100))
        with pytest.raises(FetchFailed):
            reader.read(Box(500, 0, 900, 1100))
