"""A partial file gives the same pixels as the whole file, and only the blocks of the area are fetched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import MediaUnreadable, ProcessorFailed
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.read.scene_rows import open_rows
from penstock.processors.geo.read.tiff_ranges import open_partial
from penstock.processors.geo.segmentation import RasterSegmentation
from penstock.processors.geo.tiling.plan import Box
from tests.support.geo.scenes import NORTH_UP, Files, Folder, answers, by_value, make_model, read

HEAD_BYTES = 65_536
UTM = "EPSG:32633"


class PartialFiles(Files):
    """Media of which only ranges are there: sparse copies of the files, filled when asked for.

    With `undecided`, what may come later comes with `complete`.
    """

    def __init__(self, folder: Path, *, head_bytes: int = HEAD_BYTES, undecided: bool = False) -> None:
        super().__init__()
        self._folder, self._head_bytes, self._undecided = folder, head_bytes, undecided
        self._later: set[tuple[str, int, int]] = set()
        folder.mkdir()
        self.filled_bytes = 0

    def path(self, reference: str) -> Path:
        copy = self._folder / Path(reference).name
        if not copy.exists():
            copy.touch()
            with copy.open("r+b") as file:
                file.truncate(Path(reference).stat().st_size)
            self._copy(reference, copy, 0, self._head_bytes)
        return copy

    def is_partial(self, _reference: str) -> bool:
        return True

    def fill(self, reference: str, ranges: Sequence[tuple[int, int]], *, later: bool = False) -> None:
        for start, end in ranges:
            if later and self._undecided:
                self._later.add((reference, start, end))
            else:
                self._copy(reference, self.path(reference), start, end)

    def complete(self) -> None:
        for reference, start, end in self._later:
            self._copy(reference, self.path(reference), start, end)

    def _copy(self, reference: str, copy: Path, start: int, end: int) -> None:
        with Path(reference).open("rb") as source, copy.open("r+b") as file:
            source.seek(start)
            file.seek(start)
            file.write(data := source.read(end - start))
            self.filled_bytes += len(data)


def numbers(count: int, height: int = 900, width: int = 1100) -> Any:
    return np.random.default_rng(1).integers(1, 250, (count, height, width), np.uint8)


def write(
    path: Path, *, count: int = 1, mask: bool = False, height: int = 900, width: int = 1100, **profile: Any
) -> Path:
    """Write noise, which does not compress, so that each block has its own bytes."""
    usual = {"driver": "GTiff", "dtype": "uint8", "crs": UTM, "transform": NORTH_UP, "photometric": "MINISBLACK"}
    tiles = {"tiled": True, "blockxsize": 128, "blockysize": 128}
    made = usual | ({} if profile.get("driver") == "COG" or profile.get("tiled") is False else tiles) | profile
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        target = path.with_name("plain.tif") if made["driver"] == "COG" else path
        first = made if made["driver"] != "COG" else usual | tiles
        with rasterio.open(target, "w", count=count, height=height, width=width, **first) as file:
            file.write(numbers(count, height, width))
            if mask:
                file.write_mask(np.arange(width)[None] % 50 + np.zeros((height, 1), int) > 3)
        if made["driver"] == "COG":
            rasterio.shutil.copy(target, path, **{k: v for k, v in profile.items() if k != "tiled"})
            target.unlink()
    return path


LAYOUTS: dict[str, dict[str, Any]] = {
    "COG": {"driver": "COG", "COMPRESS": "DEFLATE", "BLOCKSIZE": 128},
    "COG with a mask": {"driver": "COG", "COMPRESS": "DEFLATE", "BLOCKSIZE": 128, "mask": True},
    "COG of three bands": {"driver": "COG", "COMPRESS": "LZW", "BLOCKSIZE": 128, "count": 3},
    "COG of a BigTIFF": {"driver": "COG", "COMPRESS": "ZSTD", "BLOCKSIZE": 128, "BIGTIFF": "YES"},
    "not compressed": {},
    "strips": {"tiled": False, "blockysize": 16},
    "deflated strips": {"tiled": False, "blockysize": 7, "compress": "deflate"},
    "planes": {"count": 3, "interleave": "band", "compress": "deflate"},
    "big endian": {"ENDIANNESS": "BIG", "compress": "deflate"},
    "mask": {"mask": True, "compress": "deflate"},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_pixels_of_the_whole_file(layout: str, tmp_path: Path) -> None:
    path = write(tmp_path / "scene.tif", **LAYOUTS[layout])
    count = LAYOUTS[layout].get("count", 1)
    bands = [{"name": f"b{i}", "mean": 0.0, "std": 1.0} for i in range(count)]
    processor = RasterSegmentation(make_model(bands=bands, tile_px=64, halo_px=8))
    west, south, east, north = *(NORTH_UP @ (430, 505)), *(NORTH_UP @ (561, 391))
    request = processor.request(
        scene=str(path), outputs=("classes", "stats"), area={"bbox": [west, south, east, north], "crs": UTM}
    )
    found = []
    for files in (Files(), PartialFiles(tmp_path / "partial")):
        prepared, sink = processor.pre_process(request, files), Folder(tmp_path / f"out{len(found)}")
        processor.post_process(answers(prepared.prompts, by_value), prepared.context, sink)
        found.append(read(sink.artifacts["classes.tif"]))
    np.testing.assert_array_equal(*found)
    assert isinstance(files, PartialFiles)
    valid = found[0] != 255
    assert valid.mean() > 0.9
    expected = np.rint(read(path)[0, 391:505, 430:561]) % 5
    np.testing.assert_array_equal(found[0][0][valid[0]], expected[valid[0]])
    # The area and its halo meet 3 x 2 to 3 x 3 of 9 x 8 blocks; strips are as wide as the scene.
    assert files.filled_bytes < (0.35 if LAYOUTS[layout].get("tiled") is False else 0.3) * path.stat().st_size


def test_with_an_exact_halo_only_the_area_and_its_halo_are_fetched(tmp_path: Path) -> None:
    path = write(tmp_path / "scene.tif")
    west, south, east, north = *(NORTH_UP @ (400, 520)), *(NORTH_UP @ (500, 400))
    found, bytes_of = [], []
    for exact in (False, True):
        model = make_model(halo_px=8, stride_px=8, tile_px=320, halo_exact=exact)
        processor, files = RasterSegmentation(model), PartialFiles(tmp_path / f"{exact}")
        request = processor.request(
            scene=str(path), outputs=("classes", "preview"), area={"bbox": [west, south, east, north], "crs": UTM}
        )
        prepared, sink = processor.pre_process(request, files), Folder(tmp_path / f"out-{exact}")
        processor.post_process(answers(prepared.prompts, by_value), prepared.context, sink)
        found.append({name: made.read_bytes() for name, made in sink.artifacts.items()})
        bytes_of.append(files.filled_bytes - HEAD_BYTES)
    assert found[0] == found[1]
    # Rows 392 to 528 and columns 392 to 512 are in 2 x 1 blocks of 128 px; a tile is 336 px wide.
    assert bytes_of[1] <= 2 * (128 * 128 + 8) < bytes_of[0] / 3


def test_only_the_planes_of_the_models_bands_are_fetched(tmp_path: Path) -> None:
    path = write(tmp_path / "scene.tif", count=3, interleave="band")
    files = PartialFiles(tmp_path / "partial")
    partial = open_partial(files, str(path))
    assert partial is not None
    before = files.filled_bytes
    partial.fill(Box(0, 0, 128, 128), [2])
    assert 128 * 128 <= files.filled_bytes - before < 128 * 128 + 16


def test_a_header_at_the_end_of_the_file_is_found(tmp_path: Path) -> None:
    path = write(tmp_path / "scene.tif", height=2000)
    with rasterio.open(path, "r+") as file:
        file.update_tags(LONG="x" * 5000)  # GDAL writes the directory again, after the pixels
    files = PartialFiles(tmp_path / "partial")
    assert open_partial(files, str(path)) is not None
    assert files.filled_bytes < 4 * HEAD_BYTES


def test_rows_that_were_not_fetched_are_an_error_and_not_zeros(tmp_path: Path) -> None:
    path = write(tmp_path / "scene.tif")
    processor = RasterSegmentation(make_model())
    bbox = [*(NORTH_UP @ (0, 64)), *(NORTH_UP @ (64, 0))]
    request = processor.request(scene=str(path), area={"bbox": bbox, "crs": UTM})
    prepared = processor.pre_process(request, PartialFiles(tmp_path / "partial"))
    with open_rows(prepared.context.inputs) as rows, pytest.raises(ProcessorFailed, match=r"only .* was fetched"):
        list(rows.read(Box(0, 0, 400, 64)))


@pytest.mark.parametrize("cut", [5, 9, 200])
def test_a_damaged_header_is_unreadable(cut: int, tmp_path: Path) -> None:
    path = write(tmp_path / "scene.tif")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(MediaUnreadable):
        open_partial(PartialFiles(tmp_path / "partial"), str(path))
