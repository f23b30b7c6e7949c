"""Tiles of any size, number and order give the same result as the network on the whole scene."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from penstock.errors import MediaTooLarge, ProcessorFailed
from penstock.models import Limits
from penstock.processors.base import Output, Prompt
from penstock.processors.geo.options import NODATA
from penstock.processors.geo.segmentation import RasterSegmentation
from penstock.processors.numbers import as_floats
from penstock.processors.testing import LocalFiles, check_processor
from tests.support.geo.scenes import (
    Files,
    Folder,
    Network,
    answers,
    by_value,
    make_model,
    one_hot,
    pattern,
    read,
    segment,
    write_scene,
)


def small_net(seed: int) -> Network:
    """Return a network with stride 4 and radius 11 px. Its weights are integers, so sums are exact in any order."""
    torch.manual_seed(seed)
    layers = [nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in ((1, 4), (4, 4), (4, 4), (4, 1))]
    for layer in layers:
        layer.weight.data = torch.randint(1, 4, layer.weight.shape).double()
    first, second, third, last = layers
    pool = nn.MaxPool2d(2)
    net = nn.Sequential(first, pool, second, pool, third, nn.Upsample(scale_factor=4), last)

    def classes(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        with torch.inference_mode():
            total = net(torch.from_numpy(pixels).double()[None])[0, 0].numpy()
        return one_hot(total.astype(np.int64) % 5)

    return classes


def whole(scene: npt.NDArray[np.uint8], network: Network, stride: int) -> npt.NDArray[np.int64]:
    """Return the classes of the whole scene, padded to the stride with zeros."""
    _, height, width = scene.shape
    padded = np.pad(scene, ((0, 0), (0, -height % stride), (0, -width % stride))).astype(np.float32)
    return network(padded).argmax(axis=0)[:height, :width]


SHAPES = [(1, 1), (1, 700), (513, 1), (60, 250), (32, 32), (31, 33), (33, 31), (65, 127), (211, 199)]


@pytest.mark.breadth(every=2)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_halo_of_the_networks_radius_equals_the_whole_scene(
    shape: tuple[int, int], seed: int, tmp_path: Path
) -> None:
    scene, network = np.random.default_rng(seed).integers(0, 250, (1, *shape), np.uint8), small_net(seed)
    path = write_scene(tmp_path / "scene.tif", scene)
    model = make_model(halo_px=12, stride_px=4, tile_px=32)
    sink, _ = segment(path, tmp_path / "out", network=network, model=model)
    np.testing.assert_array_equal(read(sink.artifacts["classes.tif"])[0], whole(scene, network, 4))


def test_a_halo_one_stride_less_does_not(tmp_path: Path) -> None:
    scene, network = np.random.default_rng(1).integers(0, 250, (1, 211, 199), np.uint8), small_net(1)
    path = write_scene(tmp_path / "scene.tif", scene)
    sink, _ = segment(path, tmp_path / "out", network=network, model=make_model(halo_px=8, stride_px=4, tile_px=32))
    wrong = read(sink.artifacts["classes.tif"])[0] != whole(scene, network, 4)
    assert 0 < wrong.mean() < 0.9


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_constant_model_is_constant_everywhere_corners_too(shape: tuple[int, int], tmp_path: Path) -> None:
    path = write_scene(tmp_path / "scene.tif", pattern(*shape))

    def always_two(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return one_hot(np.full(pixels.shape[1:], 2))

    sink, result = segment(
        path, tmp_path / "out", network=always_two, model=make_model(halo_px=8, stride_px=4, tile_px=32)
    )
    assert (read(sink.artifacts["classes.tif"]) == 2).all()
    probability = read(sink.artifacts["probability.tif"])
    assert (probability == np.array([0, 0, 254, 0, 0])[:, None, None]).all()
    assert result.data is not None
    assert result.data["classes"][2]["percent"] == 100


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_nothing_is_shifted(shape: tuple[int, int], tmp_path: Path) -> None:
    path = write_scene(tmp_path / "scene.tif", pattern(*shape))
    sink, _ = segment(path, tmp_path / "out", model=make_model(halo_px=8, stride_px=4, tile_px=32))
    np.testing.assert_array_equal(read(sink.artifacts["classes.tif"]), pattern(*shape) % 5)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Folder]:
    """Return a scene with a hole, and its files computed in one tile."""
    folder, scene = tmp_path_factory.mktemp("once"), pattern(211, 199)
    scene[:, 40:120, 60:150] = 0
    path = write_scene(folder / "scene.tif", scene, nodata=0)
    model = make_model(halo_px=12, stride_px=4, tile_px=1024)
    return path, segment(path, folder / "out", network=small_net(3), model=model)[0]


@pytest.mark.breadth(every=3)
@pytest.mark.parametrize("batch", [1, 3, 16])
@pytest.mark.parametrize(("tile_px", "strip_bytes"), [(16, 2**20), (32, 2**20), (512, 2**20), (32, 10_000), (16, 1)])
def test_batches_tile_sizes_panels_and_the_order_of_the_work_give_the_same_bytes(
    batch: int, tile_px: int, strip_bytes: int, once: tuple[Path, Folder], tmp_path: Path
) -> None:
    path, expected = once
    model = make_model(halo_px=12, stride_px=4, tile_px=tile_px, strip_bytes=strip_bytes)
    sink, _ = segment(path, tmp_path / "out", network=small_net(3), model=model, batch=batch)
    for name in ("classes.tif", "probability.tif", "preview.png"):
        assert sink.artifacts[name].read_bytes() == expected.artifacts[name].read_bytes(), name


@pytest.mark.parametrize(
    "layout", [{}, {"blockysize": 1}, {"tiled": True, "blockxsize": 64, "blockysize": 64}], ids=str
)
def test_the_layout_of_the_file_does_not_matter(layout: dict[str, object], tmp_path: Path) -> None:
    path = write_scene(tmp_path / "scene.tif", pattern(211, 199), compress="deflate", **layout)
    sink, _ = segment(path, tmp_path / "out", model=make_model(halo_px=8, stride_px=4, tile_px=32))
    np.testing.assert_array_equal(read(sink.artifacts["classes.tif"]), pattern(211, 199) % 5)


def test_jpeg_2000_works_too(tmp_path: Path) -> None:
    path = tmp_path / "scene.jp2"
    write_scene(path, pattern(211, 199), driver="JP2OpenJPEG", photometric=None, QUALITY=100, REVERSIBLE="YES")
    sink, _ = segment(path, tmp_path / "out", model=make_model(halo_px=8, stride_px=4, tile_px=32))
    np.testing.assert_array_equal(read(sink.artifacts["classes.tif"]), pattern(211, 199) % 5)


def test_the_processor_keeps_the_contract(tmp_path: Path) -> None:
    holes = pattern(150, 90)
    holes[:, 30:99] = 0
    files = {
        "media://1": write_scene(tmp_path / "1.tif", pattern(211, 199)),
        "media://2": write_scene(tmp_path / "2.tif", holes, nodata=0),
    }
    done = check_processor(
        RasterSegmentation(make_model(halo_px=8, stride_px=4, tile_px=32)),
        {"scene": "media://1"},
        files,
        engine=lambda prompts: answers(prompts, by_value),
        other={"scene": "media://2", "outputs": ["classes"]},
        count_is_a_bound=True,
    )
    assert set(done.artifacts) == {"classes.tif", "classes.tif.aux.xml", "classes.qml", "preview.png", "stats.json"}


def test_a_scene_of_more_tiles_than_the_model_takes_is_refused_before_a_pixel_is_read(tmp_path: Path) -> None:
    scene = write_scene(tmp_path / "scene.tif", pattern(100, 100))
    with pytest.raises(MediaTooLarge, match="has 16 tiles; this model accepts at most 15"):
        segment(scene, tmp_path / "out", model=make_model(tile_px=32, limits=Limits(max_tiles=15)))
    assert segment(scene, tmp_path / "out", model=make_model(tile_px=32, limits=Limits(max_tiles=16)))


@pytest.mark.parametrize(("limits", "side"), [(Limits(), 32), (Limits(max_tiles=3), 32), (Limits(max_pixels=500), 24)])
def test_the_dummy_is_a_scene_of_one_tile_as_large_as_the_limits_allow(
    limits: Limits, side: int, tmp_path: Path
) -> None:
    processor = RasterSegmentation(make_model(halo_px=8, stride_px=4, tile_px=32, limits=limits))
    dummy = processor.dummy(limits, tmp_path)
    prepared = processor.pre_process(processor.request(**dummy.request), LocalFiles(dummy.files))
    assert [prompt.data["pixels"].shape for prompt in prepared.prompts] == [(1, side, side)]


def test_outputs_are_taken_while_another_thread_draws_the_prompts(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "scene.tif", pattern(211, 199))
    processor = RasterSegmentation(make_model(halo_px=8, stride_px=4, tile_px=32))
    prepared = processor.pre_process(processor.request(scene=str(path)), Files())
    crossing: Queue[Output | None] = Queue(maxsize=2)

    def draw() -> None:
        for output in answers(prepared.prompts, by_value):
            crossing.put(output)
        crossing.put(None)

    thread = threading.Thread(target=draw)
    thread.start()
    sink = Folder(tmp_path / "out")
    processor.post_process(iter(crossing.get, None), prepared.context, sink)
    thread.join()
    np.testing.assert_array_equal(read(sink.artifacts["classes.tif"]), pattern(211, 199) % 5)


def test_only_what_was_asked_for_is_made_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "scene.tif", pattern(70, 70))
    for outputs in (("classes",), ("preview",), ("probability", "stats"), ("stats",)):
        sink, result = segment(path, tmp_path / "-".join(outputs), outputs=outputs)
        names = {"classes": {"classes.tif", "classes.tif.aux.xml", "classes.qml"}, "probability": {"probability.tif"}}
        names |= {"preview": {"preview.png"}, "stats": {"stats.json"}}
        assert set(sink.artifacts) == set().union(*(names[name] for name in outputs))
        assert {file.name for file in (tmp_path / "-".join(outputs)).iterdir()} == set(sink.artifacts)
        assert result.data is not None
        assert result.data["pixels"] == 4900


def test_tiles_without_data_are_never_sent(tmp_path: Path) -> None:
    scene = np.zeros((1, 128, 128), dtype=np.uint8)
    scene[:, 100:, 100:] = 3
    path = write_scene(tmp_path / "scene.tif", scene, nodata=0)
    processor = RasterSegmentation(make_model(tile_px=32))
    prepared = processor.pre_process(processor.request(scene=str(path)), Files())
    assert (prepared.count, prepared.unit) == (16, "tiles")
    assert len(list(prepared.prompts)) == 1


def test_a_scene_without_any_data_gives_a_map_without_any(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "scene.tif", np.zeros((1, 70, 50), dtype=np.uint8), nodata=0)
    sink, result = segment(path, tmp_path / "out")
    assert (read(sink.artifacts["classes.tif"]) == NODATA).all()
    assert (read(sink.artifacts["probability.tif"]) == NODATA).all()
    assert result.data is not None
    assert (result.data["valid_pixels"], result.data["nodata_pixels"]) == (0, 3500)
    assert {label["percent"] for label in result.data["classes"]} == {None}


def test_an_engine_that_answers_too_little_too_much_or_another_shape_fails_the_job(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "scene.tif", pattern(70, 70))
    processor = RasterSegmentation(make_model(tile_px=32))

    def answer(broken: str) -> None:
        prepared = processor.pre_process(processor.request(scene=str(path)), Files())
        sink = Folder(tmp_path / broken)
        processor.post_process(spoil(list(answers(prepared.prompts, by_value)), broken), prepared.context, sink)

    def spoil(outputs: list[Output], how: str) -> Iterator[Output]:
        cropped = Output({"probability": outputs[0].data["probability"][:, 1:]})
        yield from {"less": outputs[:-1], "more": [*outputs, outputs[0]], "shape": [cropped, *outputs[1:]]}[how]

    with pytest.raises(ProcessorFailed, match="returned no output for"):
        answer("less")
    with pytest.raises(ProcessorFailed, match="more outputs than tiles"):
        answer("more")
    with pytest.raises(ProcessorFailed, match="returned shape"):
        answer("shape")


def test_prompts_are_float32_normalised_and_nodata_is_reflectance_zero(tmp_path: Path) -> None:
    scene = np.array([[[1000, 0, 3000]], [[500, 2000, 0]]], dtype=np.uint16)
    bands = [{"name": "a", "mean": 0.1, "std": 0.5}, {"name": "b", "mean": 0.2, "std": 0.25}]
    path = write_scene(tmp_path / "scene.tif", scene, nodata=0, scales=(1e-4, 1e-4))
    processor = RasterSegmentation(make_model(bands=bands, stride_px=4))
    prepared = processor.pre_process(processor.request(scene=str(path)), Files())
    (prompt,) = list[Prompt](prepared.prompts)
    assert prompt.data["pixels"].dtype == np.uint16, "the file's own numbers are sent"
    pixels = as_floats(prompt).data["pixels"]
    assert pixels.dtype == np.float32
    assert pixels.shape == (2, 4, 4)
    assert prompt.cost == 16
    expected = np.tile(np.float32([[-0.2], [-0.8]])[..., None], (1, 4, 4))
    expected[:, 0, 0] = [(0.1 - 0.1) / 0.5, (0.05 - 0.2) / 0.25]
    np.testing.assert_allclose(pixels, expected, atol=1e-7)
