"""The row stream reads every block once and ahead of its consumer, and equals a read of the whole file."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.models import Limits
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.read.grids import Factor
from penstock.processors.geo.read.raster import FileRows, open_dataset, read_scene
from penstock.processors.geo.read.resample import Chunk, coarse_box
from penstock.processors.geo.read.row_stream import Cursor, FileLayer, SceneRows, read_ahead
from penstock.processors.geo.tiling.plan import Box, make_plan
from tests.support.geo.scenes import write_scene

ONE = Factor(1, 1)


class Counting:
    """A dataset that records the windows that were read."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.windows: list[tuple[int, int, int, int]] = []

    def read(self, indexes: Any, *, window: Any) -> npt.NDArray[Any]:
        self.windows.append((window.row_off, window.col_off, window.height, window.width))
        return np.asarray(self._dataset.read(indexes, window=window))


class Pieces:
    """A raster in memory, read in chunks of the given heights in turn."""

    def __init__(self, numbers: npt.NDArray[Any], valid: npt.NDArray[np.bool_], heights: list[int]) -> None:
        self._numbers, self._valid, self._heights = numbers, valid, heights
        self.dtype, self.chunk_rows = numbers.dtype, heights[0]

    def read(self, box: Box) -> Iterator[Chunk]:
        top, turn = box.top, 0
        while top < box.bottom:
            bottom = min(box.bottom, top + self._heights[turn % len(self._heights)])
            columns = slice(box.left, box.right)
            yield top, self._numbers[:, top:bottom, columns], self._valid[top:bottom, columns]
            top, turn = bottom, turn + 1


def whole(chunks: Iterator[Chunk], box: Box, count: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Concatenate chunks, which must have no gaps or overlaps."""
    numbers, valid, top = np.empty((count, box.height, box.width)), np.zeros((box.height, box.width), bool), box.top
    for at, some, known in chunks:
        assert at == top
        assert some.shape == (count, *known.shape)
        rows = slice(at - box.top, at - box.top + known.shape[0])
        numbers[:, rows], valid[rows] = some, known
        top = at + known.shape[0]
    assert top == box.bottom
    return numbers, valid


@settings(max_examples=40, deadline=None)
@given(
    height=st.integers(1, 200),
    width=st.integers(1, 60),
    block=st.sampled_from([None, 16, 32, 64]),
    tile=st.sampled_from([8, 24, 64]),
    halo=st.sampled_from([0, 8]),
    strip_bytes=st.sampled_from([1, 10_000, 10**9]),
    start=st.integers(0, 3),
)
def test_strips_equal_a_whole_read_and_no_block_is_decoded_twice(
    height: int, width: int, block: int | None, tile: int, halo: int, strip_bytes: int, start: int
) -> None:
    truth = np.random.default_rng(height * width).integers(0, 9, (2, height, width)).astype(np.uint16)
    tiled = {"tiled": True, "blockxsize": block, "blockysize": block} if block else {}
    plan = make_plan(height, width, tile_px=tile, halo_px=halo, stride_px=8, pixel_bytes=5, strip_bytes=strip_bytes)
    with tempfile.TemporaryDirectory() as folder:
        path = write_scene(Path(folder) / "s.tif", truth, nodata=0, **tiled)
        scene = read_scene(path, Limits())
        with open_dataset(path, scene) as dataset:
            counting = Counting(dataset)
            rows = SceneRows(
                [FileLayer(FileRows(lambda _: counting, scene, [1, 2], [0, 0]), (0, 1), height, width, ONE)],
                height,
                width,
            )
            for panel in plan.panels:
                left, right = panel[0].window_start, min(width, panel[-1].window_stop)
                counting.windows.clear()
                top = plan.rows[min(start, len(plan.rows) - 1)].window_start  # resumed there
                for row in plan.rows[min(start, len(plan.rows) - 1) :]:
                    box = Box(top, left, min(height, row.window_stop), right)
                    numbers, valid = whole(rows.read(box), box, 2)
                    expected = truth[:, box.top : box.bottom, left:right]
                    np.testing.assert_array_equal(numbers, expected)
                    np.testing.assert_array_equal(valid, (expected != 0).all(axis=0))
                    top = box.bottom
                rows.close()
                read = [window for window in counting.windows if window[1] == left and window[3] == right - left]
                ends = [at + rows_ for at, _, rows_, _ in read]
                assert [at for at, *_ in read[1:]] == ends[:-1], "rows were read twice, or left out"
                assert all(end % (block or 1) == 0 for end in ends[:-1]), "a block was cut, and so decoded twice"


@settings(max_examples=60, deadline=None)
@given(
    height=st.integers(1, 300),
    width=st.integers(1, 12),
    factors=st.lists(st.sampled_from([1, 2, 3, 6]), min_size=1, max_size=4),
    heights=st.lists(st.integers(1, 90), min_size=1, max_size=5),
    cuts=st.lists(st.integers(1, 299), max_size=4),
    seed=st.integers(0, 99),
)
def test_files_of_any_chunks_and_resolutions_merge_to_the_same_rows_wherever_strips_are_cut(
    height: int, width: int, factors: list[int], heights: list[int], cuts: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)

    def layers(heights: list[int]) -> list[FileLayer]:
        return [
            FileLayer(Pieces(numbers, valid, heights), (place,), *valid.shape, Factor(factor, factor))
            for place, (numbers, valid, factor) in enumerate(rasters)
        ]

    rasters = []
    for factor in factors:
        shape = -(-height // factor), -(-width // factor)
        rasters.append((rng.integers(0, 9999, (1, *shape)).astype(np.uint16), rng.random(shape) < 0.8, factor))
    box = Box(0, 0, height, width)
    with closing(SceneRows(layers([10**6]), height, width)) as rows:
        at_once = whole(rows.read(box), box, len(factors))
    edges = sorted({0, height, *(cut for cut in cuts if cut < height)})
    strips = [Box(top, 0, bottom, width) for top, bottom in pairwise(edges)]
    with closing(SceneRows(layers(heights), height, width)) as rows:
        assert rows.dtype == (np.float32 if max(factors) > 1 else np.uint16)
        parts = [whole(rows.read(strip), strip, len(factors)) for strip in strips]
    np.testing.assert_array_equal(np.concatenate([numbers for numbers, _ in parts], axis=1), at_once[0])
    np.testing.assert_array_equal(np.concatenate([valid for _, valid in parts]), at_once[1])


@given(fine=st.tuples(st.integers(0, 50), st.integers(1, 40)), factor=st.integers(1, 7), seed=st.integers(0, 99))
def test_a_part_of_a_finer_grid_takes_no_more_than_the_rows_around_it(
    fine: tuple[int, int], factor: int, seed: int
) -> None:
    top, rows = fine
    size = -(-(top + rows) // factor) + seed % 3
    box = coarse_box(Box(top, top, top + rows, top + rows), Factor(factor, factor), size, size)
    assert (box.top, box.bottom) == (box.left, box.right)
    assert max(0, top // factor - 1) <= box.top <= top // factor
    assert (top + rows - 1) // factor < box.bottom <= min(size, (top + rows - 1) // factor + 2)


def test_a_cursor_takes_what_is_wanted_off_chunks_of_any_height() -> None:
    truth = np.arange(20).reshape(1, 20, 1)
    pieces = Pieces(truth, np.ones((20, 1), bool), [7, 1, 12])
    cursor = Cursor(pieces.read(Box(0, 0, 20, 1)), 0)
    got = [[int(n) for _, some, _ in cursor.until(bottom) for n in some.ravel()] for bottom in (3, 8, 8, 20)]
    assert got == [[0, 1, 2], [3, 4, 5, 6, 7], [], list(range(8, 20))]


def blank(at: int) -> Chunk:
    return at, np.zeros((1, 1, 1)), np.ones((1, 1), bool)


def test_the_next_chunks_are_made_before_they_are_asked_for_and_never_more_than_agreed() -> None:
    made, taken, most = 0, 0, 0
    third = threading.Event()

    def chunks() -> Iterator[Chunk]:
        nonlocal made, most
        for at in range(50):
            made += 1
            most = max(most, made - taken)
            if made == 3:
                third.set()
            yield blank(at)

    ahead = read_ahead(chunks(), depth=2)
    first = next(ahead)
    assert first[0] == 0
    assert third.wait(10), "nothing was read ahead"
    taken = 1
    for at, _, _ in ahead:
        taken = at + 1
    assert taken == 50
    assert most <= 3  # two ahead, and the current one


def test_what_fails_while_reading_ahead_fails_where_its_chunk_would_have_come() -> None:
    def chunks() -> Iterator[Chunk]:
        yield blank(0)
        raise ValueError("row 1")

    ahead = read_ahead(chunks(), depth=3)
    assert next(ahead)[0] == 0
    with pytest.raises(ValueError, match="row 1"):
        next(ahead)


def test_closing_waits_for_the_reader_and_leaves_no_thread() -> None:
    rows = SceneRows(
        [FileLayer(Pieces(np.zeros((1, 400, 4)), np.ones((400, 4), bool), [8]), (0,), 400, 4, ONE)], 400, 4
    )
    next(rows.read(Box(0, 0, 10, 4)))
    assert any(thread.name.startswith("read-ahead") for thread in threading.enumerate())
    rows.close()
    assert not any(thread.name.startswith("read-ahead") for thread in threading.enumerate())
    assert next(rows.read(Box(30, 0, 40, 4)))[0] == 30
    rows.close()


def test_jpeg_2000_is_read_as_the_same_pixels(tmp_path: Path) -> None:
    truth = np.random.default_rng(3).integers(0, 4000, (1, 333, 290)).astype(np.uint16)
    place = {"crs": "EPSG:32633", "transform": rasterio.Affine(10, 0, 3e5, 0, -10, 5e6)}
    lossless = {"QUALITY": "100", "REVERSIBLE": "YES", "BLOCKXSIZE": 128, "BLOCKYSIZE": 128}
    path = tmp_path / "s.jp2"
    with rasterio.open(
        path, "w", driver="JP2OpenJPEG", count=1, height=333, width=290, dtype="uint16", **place, **lossless
    ) as file:
        file.write(truth)
    scene = read_scene(path, Limits())
    assert (scene.driver, scene.height, scene.width, scene.dtype) == ("JP2OpenJPEG", 333, 290, "uint16")
    assert (str(scene.crs), scene.transform) == ("EPSG:32633", place["transform"])
    box = Box(100, 20, 333, 290)
    with open_dataset(path, scene) as dataset:
        numbers, _ = whole(FileRows(lambda _: dataset, scene, [1], [None]).read(box), box, 1)
    np.testing.assert_array_equal(numbers, truth[:, 100:, 20:])
