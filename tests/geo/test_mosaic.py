"""A mosaic of scenes: seams are invisible, the first scene or the median of all gives each pixel."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from penstock.errors import InvalidInput, MediaTooLarge, ProcessorFailed
from penstock.models import Limits
from penstock.processors.geo.options import Band, DefaultRadiometry
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.read.inputs import Inputs, read_inputs
from penstock.processors.geo.read.merge import MergedRows, MosaicPart
from penstock.processors.geo.read.placement import Shift, Warp, whole
from penstock.processors.geo.read.resample import Chunk
from penstock.processors.geo.read.scene_rows import fill_files, open_rows
from penstock.processors.geo.request import SceneRequest, SegmentationRequest
from penstock.processors.geo.segmentation import RasterSegmentation
from penstock.processors.geo.tiling.plan import Box
from tests.geo.test_ranges import PartialFiles
from tests.support.geo.in_memory import MemoryRows
from tests.support.geo.metadata import item
from tests.support.geo.scenes import (
    NORTH_UP,
    Files,
    Folder,
    answers,
    by_value,
    make_model,
    pattern,
    read,
    segment,
    write_scene,
)

UTM = "EPSG:32633"
Numbers = npt.NDArray[Any]
GREY = [Band(name="grey", mean=0, std=1)]
DEFAULTS = [DefaultRadiometry(dtypes=("uint8", "uint16", "float32"), scale=1.0)]
ALL = ("classes", "confidence", "polygons", "preview", "stats")


def part_of(path: Path, numbers: Numbers, box: tuple[int, int, int, int], **profile: Any) -> dict[str, Any]:
    """Write a part (top, left, bottom, right) of numbers as a scene of its own."""
    top, left, bottom, right = box
    moved = profile.pop("transform", NORTH_UP) @ rasterio.Affine.translation(left, top)
    return {"scene": str(write_scene(path, numbers[:, top:bottom, left:right], transform=moved, **profile))}


def mosaic(*scenes: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {"mosaic": {"scenes": list(scenes), **options}}


def inputs(request: dict[str, Any], needed: Any = GREY, **options: Any) -> Inputs:
    return read_inputs(SceneRequest.model_validate(request), Files(), needed, **{"defaults": DEFAULTS, **options})


def pixels(found: Inputs) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """Return the numbers of the whole scene, 0 where nothing is valid."""
    with open_rows(found) as rows:
        numbers, valid = whole(rows.read(Box(0, 0, found.scene.height, found.scene.width)))
    return np.where(valid, numbers, 0), valid


@pytest.mark.parametrize(
    ("boxes", "merge"),
    [
        (((0, 0, 61, 20), (0, 20, 61, 53)), "first"),
        (((33, 0, 61, 53), (0, 0, 40, 53)), "median"),  # they overlap, and the lower one is first
        (((0, 0, 40, 30), (0, 23, 61, 53), (40, 0, 61, 23)), "first"),
    ],
)
def test_parts_of_a_scene_give_the_whole_scenes_result(
    boxes: tuple[tuple[int, int, int, int], ...], merge: str, tmp_path: Path
) -> None:
    folder, (height, width) = tmp_path, (61, 53)
    numbers = pattern(height, width)
    numbers[:, np.random.default_rng(1).random((height, width)) < 0.1] = 0
    kept = {"nodata": 0, "tiled": True, "blockxsize": 32, "blockysize": 16}
    scenes = [part_of(folder / f"{at}.tif", numbers, box, **kept) for at, box in enumerate(boxes)]
    path = write_scene(folder / "whole.tif", numbers, nodata=0)
    model = make_model(tile_px=32, halo_px=8)
    expected, stats = segment(path, folder / "of-whole", model=model, outputs=ALL)
    found, of_mosaic = segment(None, folder / "of-parts", model=model, outputs=ALL, **mosaic(*scenes, merge=merge))
    for name in ("classes.tif", "confidence.tif", "polygons.fgb", "preview.png"):
        assert found.artifacts[name].read_bytes() == expected.artifacts[name].read_bytes(), name
    assert of_mosaic.data is not None
    assert stats.data is not None
    assert of_mosaic.data["classes"] == stats.data["classes"]
    assert of_mosaic.data["mosaics"][0]["merge"] == merge
    assert len(of_mosaic.data["scene"]["etags"]) == len(boxes)


def test_bands_of_several_resolutions_have_no_seam(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    needed = [Band(name="red", mean=0, std=1), Band(name="swir", mean=0, std=1)]
    red, swir = (rng.integers(1, 9999, (1, side, side)).astype(np.uint16) for side in (96, 48))
    swir[0, 10:14, 22:26] = 0  # nodata on the seam

    def scene(name: str, box: tuple[int, int, int, int]) -> dict[str, Any]:
        half = tuple(side // 2 for side in box)
        coarse = NORTH_UP @ rasterio.Affine.scale(2)
        files = [
            {"media": part_of(tmp_path / f"{name}-red.tif", red, box)["scene"], "bands": ["red"]},
            {
                "media": part_of(tmp_path / f"{name}-swir.tif", swir, half, transform=coarse, nodata=0)["scene"],  # type: ignore[arg-type]
                "bands": ["swir"],
            },
        ]
        return {"files": files}

    expected = pixels(inputs(scene("whole", (0, 0, 96, 96)), needed))
    parts = [scene("a", (0, 0, 96, 48)), scene("b", (0, 48, 50, 96)), scene("c", (50, 48, 96, 96))]
    found = pixels(inputs(mosaic(*parts), needed))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


TWO = [Band(name="red", mean=0, std=1), Band(name="swir", mean=0, std=1)]
TILES = {"tiled": True, "blockxsize": 128, "blockysize": 128}


def two_resolutions(folder: Path, *, factor: int = 2, mask_factor: int | None = None) -> dict[str, Any]:
    """Return a mosaic of two scenes of 1200 x 1200 pixels; the seam is at column 1200. Tiles are not compressed."""
    rng, scenes = np.random.default_rng(6), []

    def file(name: str, every: int, at: int, values: Numbers) -> str:
        moved = NORTH_UP @ rasterio.Affine.translation(1200 * at, 0) @ rasterio.Affine.scale(every)
        return str(write_scene(folder / f"{name}{at}.tif", values, transform=moved, **TILES))

    for at in range(2):
        red = rng.integers(1, 9999, (1, 1200, 1200)).astype(np.uint16)
        swir = rng.integers(1, 9999, (1, 1200 // factor, 1200 // factor)).astype(np.uint16)
        files = [
            {"media": file("red", 1, at, red), "bands": ["red"]},
            {"media": file("swir", factor, at, swir), "bands": ["swir"]},
        ]
        scenes.append({"files": files})
        if mask_factor is not None:
            values = rng.choice([4, 9], (1, 1200 // mask_factor, 1200 // mask_factor)).astype(np.uint8)
            scenes[at]["mask"] = {"media": file("scl", mask_factor, at, values), "kind": "scl"}  # type: ignore[assignment]
    return mosaic(*scenes)


def part_read(found: Inputs, window: Box) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    with open_rows(found, bottom=window.bottom) as rows:
        numbers, valid = whole(rows.read(window))
    return np.where(valid, numbers, 0), valid


#: Windows at the seam: that end there, begin there, lie across it, are one pixel wide, or lie at an edge of the mosaic.
WINDOWS = [
    Box(512, 700, 640, 1200), Box(512, 1200, 640, 1500), Box(511, 1100, 641, 1300), Box(700, 1199, 777, 1200),
    Box(1000, 1201, 1200, 2400), Box(0, 0, 100, 1199),
]  # fmt: skip


@pytest.mark.breadth(every=3)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize(("factor", "mask_factor"), [(2, None), (2, 2), (3, 2), (2, 6), (6, 1)])
def test_partial_files_of_two_resolutions_give_the_mosaics_pixels_at_a_seam(
    tmp_path: Path, factor: int, mask_factor: int | None, window: Box
) -> None:
    request = SceneRequest.model_validate(two_resolutions(tmp_path, factor=factor, mask_factor=mask_factor))
    expected = part_read(read_inputs(request, Files(), TWO, defaults=DEFAULTS), window)
    partial = read_inputs(request, PartialFiles(tmp_path / "sparse"), TWO, defaults=DEFAULTS)
    found = part_read(fill_files(partial, window), window)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_of_a_mosaic_of_two_resolutions_only_the_blocks_of_the_window_are_fetched(tmp_path: Path) -> None:
    request = SceneRequest.model_validate(two_resolutions(tmp_path, mask_factor=2))
    media = PartialFiles(tmp_path / "sparse")
    partial = read_inputs(request, media, TWO, defaults=DEFAULTS)
    before = media.filled_bytes
    fill_files(partial, Box(512, 700, 640, 1200))
    # Red: 1 x 5 blocks of the left scene. SWIR and the mask: 2 x 3 blocks there, and 2 x 1 of the neighbour; the blocks
    # at the right edge are whole. All have 128 x 128 pixels of 2, 2 and 1 bytes.
    blocks = 2 * 5 + 2 * (6 + 2) + (6 + 2)
    assert media.filled_bytes - before <= blocks * (128 * 128 + 8)


def test_a_scene_beside_the_fetched_part_cannot_be_read(tmp_path: Path) -> None:
    request = SceneRequest.model_validate(two_resolutions(tmp_path))
    partial = read_inputs(request, PartialFiles(tmp_path / "sparse"), TWO, defaults=DEFAULTS)
    filled = fill_files(partial, Box(512, 700, 640, 900))
    with pytest.raises(ProcessorFailed, match=r"only .* was fetched"):
        part_read(filled, Box(512, 1300, 640, 1400))


@pytest.mark.parametrize("dates", [1, 2])
def test_the_files_and_masks_of_all_dates_are_counted(tmp_path: Path, dates: int) -> None:
    media = str(write_scene(tmp_path / "scene.tif", pattern(8, 8)))
    scene: dict[str, Any] = {"files": [{"media": media, "bands": ["grey"]}, {"media": media, "bands": ["other"]}]}
    if dates == 1:
        scene["files"] += [{"media": media, "bands": [f"further {at}"]} for at in range(2)]
        scene["mask"] = {"media": media, "kind": "scl"}
        request = mosaic(*[scene] * 81)
    else:
        request = {"dates": [mosaic(*[scene] * 100), mosaic(*[scene] * 100), mosaic(scene)]}
    with pytest.raises(InvalidInput, match=r"have 40[25] files; at most 400"):
        inputs(request, dates=1 if dates == 1 else 3)


@pytest.mark.parametrize("resolution", [1e-200, 1e-10, 1e10, 1e300])
def test_a_resolution_beyond_all_use_is_rejected(resolution: float) -> None:
    with pytest.raises(ValidationError, match="resolution"):
        SceneRequest.model_validate(mosaic({"scene": "a.tif"}, grid={"crs": UTM, "resolution": resolution}))


@pytest.mark.parametrize("crs", [UTM, "EPSG:4326"])
def test_the_smallest_resolution_has_a_reason(tmp_path: Path, crs: str) -> None:
    scene = {"scene": str(write_scene(tmp_path / "scene.tif", pattern(8, 8)))}
    with pytest.raises(InvalidInput, match=f"The unit of {crs} is the (metre|degree): with the resolution 1e-09,"):
        inputs(mosaic(scene, grid={"crs": crs, "resolution": 1e-9}))


def rows_of(numbers: list[list[float]], known: list[list[int]]) -> MemoryRows:
    return MemoryRows(np.array([numbers], np.float32), np.array(known, bool))


def test_the_first_scene_with_data_or_the_median_of_all_gives_a_pixel(tmp_path: Path) -> None:
    numbers = np.array([[[5, 5, 5, 0]], [[9, 0, 9, 0]], [[2, 2, 0, 0]], [[100, 4, 0, 0]]], np.uint8)
    scenes = [
        {"scene": str(write_scene(tmp_path / f"{at}.tif", one[None], nodata=0))} for at, one in enumerate(numbers)
    ]
    first, valid = pixels(inputs(mosaic(*scenes)))
    np.testing.assert_array_equal(first, [[[5, 5, 5, 0]]])
    np.testing.assert_array_equal(valid, [[True, True, True, False]])
    turned, _ = pixels(inputs(mosaic(*scenes[::-1])))
    np.testing.assert_array_equal(turned, [[[100, 4, 9, 0]]])
    medians, valid = pixels(inputs(mosaic(*scenes, merge="median")))
    np.testing.assert_array_equal(medians, [[[7, 4, 7, 0]]])
    np.testing.assert_array_equal(valid, [[True, True, True, False]])


@settings(deadline=None, max_examples=20)
@given(
    seed=st.integers(0, 999), count=st.integers(1, 5), height=st.integers(1, 300),
    merge=st.sampled_from(["first", "median"]),
)  # fmt: skip
def test_any_part_of_a_mosaic_equals_that_part_of_numpys(seed: int, count: int, height: int, merge: str) -> None:
    rng, width = np.random.default_rng(seed), 20
    stack, known = rng.integers(0, 50, (count, 2, height, width)), rng.random((count, height, width)) < 0.5
    boxes, parts = [], []
    for numbers, valid in zip(stack.astype(np.uint16), known, strict=True):
        top, left = rng.integers(0, height), rng.integers(0, width)
        box = Box(int(top), int(left), int(rng.integers(top, height)) + 1, int(rng.integers(left, width)) + 1)
        rows, columns = slice(box.top, box.bottom), slice(box.left, box.right)
        memory = MemoryRows(numbers[:, rows, columns], valid[rows, columns])
        memory.chunk_rows = 1  # type: ignore[attr-defined]
        boxes.append(box)
        parts.append(MosaicPart(Shift(box).place(memory, 2), box))  # type: ignore[arg-type]  # it reads like a file
    there = np.zeros_like(known)
    for one, box in zip(there, boxes, strict=True):
        one[box.top : box.bottom, box.left : box.right] = True
    there &= known
    masked = np.ma.masked_array(stack, np.repeat(~there[:, None], 2, axis=1))
    best = np.take_along_axis(stack, there.argmax(axis=0)[None, None], axis=0)[0]
    expected = best if merge == "first" else np.ma.median(masked, axis=0).filled(0)
    part = Box(height // 3, 3, height, 17)
    numbers, valid = whole(MergedRows(parts, 2, merge).read(part))  # type: ignore[arg-type]
    at = slice(part.top, part.bottom), slice(part.left, part.right)
    np.testing.assert_array_equal(valid, there.any(axis=0)[at])
    np.testing.assert_array_equal(np.where(valid, numbers, 0), np.where(valid, expected[:, *at], 0))


class Endless:
    """Rows of a scene of any height, made while they are read."""

    dtype, chunk_rows = np.dtype(np.uint16), 512

    def read(self, box: Box) -> Iterator[Chunk]:
        for top in range(box.top, box.bottom, self.chunk_rows):
            rows = min(self.chunk_rows, box.bottom - top)
            yield top, np.full((6, rows, box.width), 7, np.uint16), np.ones((rows, box.width), bool)


def peak_bytes(height: int, merge: Any, *, warp: bool) -> int:
    """Return the peak memory of merging four scenes of this height."""
    box = Box(0, 0, height, 150)
    place = Warp(box, None, NORTH_UP, ~NORTH_UP, height, 150) if warp else Shift(box)
    parts = [MosaicPart(place.place(Endless(), 6), box) for _ in range(4)]
    tracemalloc.start()
    try:
        for _, numbers, valid in MergedRows(parts, 6, merge).read(box):
            assert valid.all()
            assert (numbers == 7).all()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.breadth(but=("True-first",))
@pytest.mark.parametrize("merge", ["first", "median"])
@pytest.mark.parametrize("warp", [False, True])
def test_memory_does_not_grow_with_the_height_of_a_mosaic(merge: str, warp: bool) -> None:
    low, high = (peak_bytes(height, merge, warp=warp) for height in (1500, 6000))
    assert high < 1.05 * low
    assert high < 17 * 2**20  # 4 scenes of 6 bands would take 43 MB


def test_scenes_with_other_radiometry_come_to_the_first_scenes_numbers(tmp_path: Path) -> None:
    numbers = pattern(40, 60).astype(np.uint16) * 30
    left = part_of(tmp_path / "left.tif", numbers, (0, 0, 40, 30))
    right = part_of(tmp_path / "right.tif", numbers + 1000, (0, 30, 40, 60))
    left["radiometry"] = {"scale": 1e-4}
    right["radiometry"] = {"scale": 1e-4, "offset": -0.1}
    found, valid = pixels(inputs(mosaic(left, right)))
    assert valid.all()
    np.testing.assert_allclose(found, numbers, rtol=1e-6)


def test_an_area_of_a_mosaic_is_its_result_cut_and_only_its_parts_are_fetched(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    numbers = rng.integers(1, 250, (1, 700, 1400), np.uint8)
    layout = {"tiled": True, "blockxsize": 128, "blockysize": 128}
    scenes = [part_of(tmp_path / f"{at}.tif", numbers, (0, 700 * at, 700, 700 * at + 700), **layout) for at in range(2)]
    model = make_model(tile_px=64, halo_px=8)
    (west, north), (east, south) = NORTH_UP @ (660, 100), NORTH_UP @ (740, 190)
    request = {**mosaic(*scenes), "outputs": ("classes",)}
    expected, _ = segment(None, tmp_path / "all", model=model, **request)
    area = {"bbox": [west, south, east, north], "crs": UTM}
    found, _ = segment(None, tmp_path / "cut", model=model, area=area, **request)
    cut = read(found.artifacts["classes.tif"])
    np.testing.assert_array_equal(cut, read(expected.artifacts["classes.tif"])[:, 100:190, 660:740])
    media = PartialFiles(tmp_path / "partial")
    processor = RasterSegmentation(model)
    prepared = processor.pre_process(SegmentationRequest.model_validate({**request, "area": area}), media)
    sink = Folder(tmp_path / "of-partial")
    processor.post_process(answers(prepared.prompts, by_value), prepared.context, sink)
    np.testing.assert_array_equal(read(sink.artifacts["classes.tif"]), cut)
    whole_bytes = sum(Path(one["scene"]).stat().st_size for one in scenes)
    assert media.filled_bytes < whole_bytes / 2


def test_scenes_of_other_grids_are_reprojected_to_a_stated_grid(tmp_path: Path) -> None:
    numbers = pattern(80, 90)
    path = write_scene(tmp_path / "utm33.tif", numbers, nodata=0)
    with rasterio.open(path) as file:
        bounds = rasterio.warp.transform_bounds(UTM, "EPSG:32632", *file.bounds)
    grid = {"crs": "EPSG:32632", "resolution": 30}
    found = inputs(mosaic({"scene": str(path)}, grid=grid))
    scene = found.scene
    assert (str(scene.crs), scene.transform.a, scene.transform.e) == ("EPSG:32632", 30, -30)
    assert scene.transform.c % 30 == scene.transform.f % 30 == 0
    west, south, east, north = rasterio.transform.array_bounds(scene.height, scene.width, scene.transform)
    assert west <= bounds[0] + 1
    assert south <= bounds[1] + 1
    assert east >= bounds[2] - 1
    assert north >= bounds[3] - 1
    ours, valid = pixels(found)
    theirs = np.zeros((1, scene.height, scene.width), np.uint8)
    rasterio.warp.reproject(
        numbers, theirs, src_transform=NORTH_UP, src_crs=UTM, dst_transform=scene.transform, dst_crs=scene.crs,
        resampling=rasterio.enums.Resampling.nearest, tolerance=0,
    )  # fmt: skip
    assert (ours != theirs).mean() < 1e-3  # centres on the edge of two pixels
    np.testing.assert_array_equal(valid, ours[0] > 0)


@pytest.mark.parametrize("crs", [UTM, "EPSG:32632", "EPSG:4326"])
@pytest.mark.parametrize("merge", ["first", "median"])
def test_two_halves_have_no_seam_on_a_stated_grid(tmp_path: Path, crs: str, merge: str) -> None:
    numbers = pattern(300, 310)
    numbers[:, 100:120, 130:170] = 0
    grid = {"crs": crs, "resolution": 0.0003 if crs == "EPSG:4326" else 20}
    one = {"scene": str(write_scene(tmp_path / "whole.tif", numbers, nodata=0))}
    parts = [
        part_of(tmp_path / "a.tif", numbers, (0, 0, 300, 151), nodata=0),
        part_of(tmp_path / "b.tif", numbers, (0, 151, 300, 310), nodata=0),
    ]
    found, expected = inputs(mosaic(*parts, grid=grid, merge=merge)), inputs(mosaic(one, grid=grid, merge=merge))
    assert (found.scene.height, found.scene.width) == (expected.scene.height, expected.scene.width)
    assert found.scene.transform == expected.scene.transform
    for ours, theirs in zip(pixels(found), pixels(expected), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    box = Box(37, 41, 200, 230)  # any part is that part of the whole
    with open_rows(found) as rows:
        cut, known = whole(rows.read(box))
    numbers_all, valid_all = pixels(found)
    at = slice(box.top, box.bottom), slice(box.left, box.right)
    np.testing.assert_array_equal(known, valid_all[at])
    np.testing.assert_array_equal(np.where(known, cut, 0), numbers_all[:, *at])


def test_an_area_of_a_reprojected_mosaic_fetches_only_its_part(tmp_path: Path) -> None:
    numbers = np.random.default_rng(2).integers(1, 250, (1, 900, 900), np.uint8)
    layout = {"tiled": True, "blockxsize": 128, "blockysize": 128}
    scene = {"scene": str(write_scene(tmp_path / "scene.tif", numbers, **layout))}
    request: dict[str, Any] = {**mosaic(scene, grid={"crs": "EPSG:32632", "resolution": 30}), "outputs": ("classes",)}
    (west, north), (east, south) = NORTH_UP @ (300, 400), NORTH_UP @ (360, 480)
    request["area"] = {"bbox": [west, south, east, north], "crs": UTM}
    model, found = make_model(tile_px=64, halo_px=8), []
    for name, media in (("whole", Files()), ("partial", PartialFiles(tmp_path / "sparse"))):
        processor = RasterSegmentation(model)
        prepared = processor.pre_process(SegmentationRequest.model_validate(request), media)
        sink = Folder(tmp_path / name)
        processor.post_process(answers(prepared.prompts, by_value), prepared.context, sink)
        found.append(read(sink.artifacts["classes.tif"]))
    np.testing.assert_array_equal(*found)
    assert (found[0] != 255).any()
    assert media.filled_bytes < Path(scene["scene"]).stat().st_size / 2  # type: ignore[attr-defined]


def test_a_mosaic_may_be_at_either_date_of_a_change(tmp_path: Path) -> None:
    before, after = pattern(60, 80), pattern(60, 80)[:, ::-1].copy()
    old = write_scene(tmp_path / "before.tif", before)
    halves = [part_of(tmp_path / f"{at}.tif", after, (0, 40 * at, 60, 40 * at + 40)) for at in range(2)]
    new = write_scene(tmp_path / "after.tif", after)
    change = {"of": ["class 1"], "before": {"scene": str(old)}}
    expected, _ = segment(new, tmp_path / "one", change=change)
    found, _ = segment(None, tmp_path / "two", change=change, **mosaic(*halves))
    assert found.artifacts["change.tif"].read_bytes() == expected.artifacts["change.tif"].read_bytes()


def test_stac_items_of_one_day_are_a_mosaic(tmp_path: Path) -> None:
    numbers = pattern(50, 70)
    halves = [part_of(tmp_path / f"{at}.tif", numbers, (0, 35 * at, 50, 35 * at + 35)) for at in range(2)]
    items = []
    for at, half in enumerate(halves):
        document = item({"grey": {"href": half["scene"], "eo:bands": [{"name": "grey"}]}})
        document["properties"]["datetime"] = f"2024-05-0{2 - at}T10:00:00Z"
        document["assets"]["grey"]["href"] = f"https://example.com/{Path(half['scene']).name}"
        items.append({"stac": document})
    files = {f"https://example.com/{Path(half['scene']).name}": Path(half["scene"]) for half in halves}

    class Web(Files):
        def path(self, reference: str) -> Path:
            return files[reference]

    found = read_inputs(SceneRequest.model_validate(mosaic(*items)), Web(), GREY, defaults=DEFAULTS)
    ours, _ = pixels(found)
    np.testing.assert_array_equal(ours, numbers)
    assert [time.isoformat() for time in found.acquired] == ["2024-05-01T10:00:00+00:00"]


@pytest.mark.parametrize(
    ("crs", "resolution", "said"),
    [
        ("EPSG:4326", 60, r"EPSG:4326 is the degree: with the resolution 60, .* would have 1 x 1 pixels"),
        ("EPSG:4326", 1, r"is the degree: with the resolution 1,"),
        (UTM, 0.01, r"EPSG:32633 is the metre: with .* 0\.01, the mosaic would have 120,000 x 90,000 pixels"),
        (UTM, 30_000, r"is the metre: with the resolution 30000,"),
    ],
)
def test_a_resolution_in_a_wrong_unit_is_refused_with_the_unit(
    crs: str, resolution: float, said: str, tmp_path: Path
) -> None:
    scene = {"scene": str(write_scene(tmp_path / "s.tif", pattern(30, 40)))}
    with pytest.raises(InvalidInput, match=said) as refused:
        inputs(mosaic(scene, grid={"crs": crs, "resolution": resolution}))
    assert refused.value.errors[0].pointer == "/input/mosaic/grid/resolution"
    assert "far apart" not in refused.value.detail


def test_a_mosaic_may_be_much_coarser_or_finer_than_its_scenes(tmp_path: Path) -> None:
    scene = {"scene": str(write_scene(tmp_path / "s.tif", pattern(300, 400)))}
    for resolution, shape in ((4, (2250, 3000)), (2500, (4, 5))):
        found = inputs(mosaic(scene, grid={"crs": UTM, "resolution": resolution})).scene
        assert (found.height, found.width) == pytest.approx(shape, abs=1)


def test_scenes_that_do_not_fit_are_rejected_with_a_reason(tmp_path: Path) -> None:
    numbers = pattern(30, 40)

    def scene(name: str, **profile: Any) -> dict[str, Any]:
        return {"scene": str(write_scene(tmp_path / name, numbers, **profile))}

    base = scene("base.tif")
    shifted = scene("shifted.tif", transform=NORTH_UP @ rasterio.Affine.translation(0.4, 0))
    with pytest.raises(InvalidInput, match=r"Scene 2 are not those of the first scene's grid.*`grid`"):
        inputs(mosaic(base, shifted))
    with pytest.raises(InvalidInput, match=r"Scene 2 has another CRS"):
        inputs(mosaic(base, scene("other.tif", crs="EPSG:32632")))
    with pytest.raises(InvalidInput, match=r"needs scenes with a CRS"):
        inputs(mosaic(base, scene("none.tif", crs=None, transform=None)))
    far = scene("far.tif", transform=NORTH_UP @ rasterio.Affine.translation(5000, 5000))
    with pytest.raises(InvalidInput, match="far apart"):
        inputs(mosaic(base, far))
    with pytest.raises(InvalidInput, match="There is no CRS 'EPSG:1'"):
        inputs(mosaic(base, grid={"crs": "EPSG:1", "resolution": 10}))
    near = scene("near.tif", transform=NORTH_UP @ rasterio.Affine.translation(40, 0))
    with pytest.raises(MediaTooLarge, match="80 x 30"):
        inputs(mosaic(base, near), limits=Limits(max_pixels=2000))
    with pytest.raises(InvalidInput, match="far apart"):
        inputs(mosaic(base, far, grid={"crs": UTM, "resolution": 30}))
    for wrong in ({**mosaic(base), "scene": base["scene"]}, {**mosaic(base), "sidecar": "a.xml"}, mosaic()):
        with pytest.raises(ValidationError):
            SceneRequest.model_validate(wrong)
