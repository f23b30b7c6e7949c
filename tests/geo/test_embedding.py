"""Embeddings of scenes: each vector lies where its pixels are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import shapely
import transformers

from penstock.errors import ConfigError, ModelUnavailable, ProcessorFailed
from penstock.models import Limits, Model
from penstock.processors.base import Output, Prompt, Result
from penstock.processors.geo.embedding import RasterEmbedding
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.numbers import as_floats
from penstock.processors.testing import check_processor, check_request_module
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from tests.support.geo.scenes import NORTH_UP, Files, Folder, make_model, pattern, read, write_scene

pq = pytest.importorskip("pyarrow.parquet")
Network = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]
TILES = {"tile_px": 16}
PATCHES = {"tile_px": 32, "patch_px": 8}
INNER = {**PATCHES, "halo_px": 8}


def vector_model(**options: Any) -> Model:
    base = make_model(**options)
    left_out = {"classes", "halo_px", "stride_px", "tile_px"} - options.keys()
    kept = {name: value for name, value in base.options.items() if name not in left_out}
    return base.model_copy(update={"processor": "raster-embedding", "options": kept, "source": "/nowhere"})


def means(side: int) -> Network:
    """Return the network of three dimensions: mean, largest and smallest number of each square."""

    def network(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        rows, columns = (length // side for length in pixels.shape[1:])
        squares = pixels[0].reshape(rows, side, columns, side)
        return np.stack([squares.mean((1, 3)), squares.max((1, 3)), squares.min((1, 3))])

    return network


def embed(
    scene: Path,
    folder: Path,
    model: Model,
    *,
    network: Network | None = None,
    saved: dict[str, Path] | None = None,
    **request: Any,
) -> tuple[Folder, Result]:
    processor, sink = RasterEmbedding(model), Folder(folder)
    prepared = processor.pre_process(processor.request(scene=str(scene), **request), Files(saved))
    network = network or means(model.options.get("patch_px", model.options["tile_px"]))
    return sink, processor.post_process(answers(prepared.prompts, network), prepared.context, sink)


def answers(prompts: Iterator[Prompt], network: Network | None = None) -> Iterator[Output]:
    network = network or means(8)
    return (Output({"embedding": network(as_floats(prompt).data["pixels"])}) for prompt in prompts)


def expected_of(numbers: npt.NDArray[Any], side: int) -> npt.NDArray[np.float32]:
    """Return the vectors of the whole scene at once; beyond its edge is fill: 0, as the band's mean is."""
    height, width = numbers.shape[1:]
    padded = np.pad(numbers, ((0, 0), (0, -height % side), (0, -width % side)))
    return means(side)(padded.astype(np.float32))


@pytest.mark.parametrize("cut", [TILES, PATCHES, INNER], ids=["tiles", "patches", "inner"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 100), (32, 33), (64, 64), (97, 101)], ids=str)
def test_every_vector_is_that_of_the_whole_scene_and_lies_on_its_pixels(
    shape: tuple[int, int], cut: dict[str, int], tmp_path: Path
) -> None:
    numbers, side = pattern(*shape), cut.get("patch_px", cut["tile_px"])
    scene = write_scene(tmp_path / "scene.tif", numbers)
    sink, result = embed(scene, tmp_path / "out", vector_model(**cut))
    np.testing.assert_array_equal(read(sink.artifacts["embeddings.tif"]), expected_of(numbers, side))
    with rasterio.open(sink.artifacts["embeddings.tif"]) as file, rasterio.open(scene) as source:
        assert file.transform == source.transform @ rasterio.Affine.scale(side)
        assert file.crs == source.crs
        assert np.isnan(file.nodata)
    assert result.data is not None
    rows, columns = (-(-length // side) for length in shape)
    assert result.data["embeddings"] == {
        "count": rows * columns, "dimensions": 3, "width": columns, "height": rows, "pixels_per_side": side,
    }  # fmt: skip


def test_the_inner_part_of_each_tile_is_used(tmp_path: Path) -> None:
    """A network that tells the distance to its own border: only the scene's border is one."""

    def network(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        at = np.arange(pixels.shape[1] // 8)
        near = np.minimum(at, at[::-1])
        return np.minimum(near[:, None], near)[None].astype(np.float32)

    scene = write_scene(tmp_path / "scene.tif", pattern(96, 96))
    sink, _ = embed(scene, tmp_path / "out", vector_model(**INNER), network=network)
    [vectors] = read(sink.artifacts["embeddings.tif"])
    assert (vectors[1:-1, 1:-1] == 1).all()
    assert (vectors[0] == 0).all()


def test_patches_without_data_have_no_vector_and_the_table_has_the_shares(tmp_path: Path) -> None:
    numbers = pattern(60, 70)
    numbers[numbers == 0] = 1
    numbers[:, :16, 8:24] = 0
    numbers[:, 20:24, 32:40] = 0
    scene = write_scene(tmp_path / "scene.tif", numbers, nodata=0)
    sink, result = embed(scene, tmp_path / "out", vector_model(**PATCHES), outputs=("embeddings", "geoparquet"))
    vectors = read(sink.artifacts["embeddings.tif"])
    empty = np.zeros((8, 9), bool)
    empty[:2, 1:3] = True
    np.testing.assert_array_equal(np.isnan(vectors), np.broadcast_to(empty, vectors.shape))
    table = pq.read_table(sink.artifacts["embeddings.parquet"])
    assert len(table) == 8 * 9 - 4
    rows, columns = table["row"].to_numpy(), table["column"].to_numpy()
    np.testing.assert_array_equal(np.array(table["embedding"].to_pylist(), np.float32), vectors[:, rows, columns].T)
    shares = dict(zip(zip(rows.tolist(), columns.tolist(), strict=True), table["valid"].to_pylist(), strict=True))
    assert (shares[0, 0], shares[2, 4], shares[7, 0], shares[7, 8]) == (1, 0.5, 0.5, 0.375)
    for row, column, shape in zip(rows, columns, shapely.from_wkb(table["geometry"].to_pylist()), strict=True):
        corner, other = NORTH_UP @ (8 * column, 8 * row), NORTH_UP @ (8 * column + 8, 8 * row + 8)
        assert shape.equals(shapely.box(*np.minimum(corner, other), *np.maximum(corner, other)))
    geo = json.loads(table.schema.metadata[b"geo"])
    assert geo["columns"]["geometry"]["crs"]["id"]["code"] == 32633
    assert result.data is not None
    assert result.data["scene"]["width"] == 70


def test_an_area_has_the_vectors_of_the_scene_where_it_has_pixels(tmp_path: Path) -> None:
    numbers = pattern(100, 90)
    scene = write_scene(tmp_path / "scene.tif", numbers)
    (left, top), (right, bottom) = NORTH_UP @ (20, 30), NORTH_UP @ (50, 66)
    area = {"bbox": [left, bottom, right, top], "crs": "EPSG:32633"}
    outputs = ("embeddings", "geoparquet")
    sink, _ = embed(scene, tmp_path / "out", vector_model(**PATCHES), area=area, outputs=outputs)
    vectors = read(sink.artifacts["embeddings.tif"])
    np.testing.assert_array_equal(vectors, expected_of(numbers, 8)[:, 3:9, 2:7])
    with rasterio.open(sink.artifacts["embeddings.tif"]) as file:
        assert file.transform == NORTH_UP @ rasterio.Affine.translation(16, 24) @ rasterio.Affine.scale(8)
    table = pq.read_table(sink.artifacts["embeddings.parquet"]).to_pylist()
    assert {(one["row"], one["column"]) for one in table} == {(r, c) for r in range(3, 9) for c in range(2, 7)}
    assert table[0]["valid"] == pytest.approx(2 * 4 / 64)


def test_a_scene_without_data_has_no_vectors(tmp_path: Path) -> None:
    scene = write_scene(tmp_path / "scene.tif", np.zeros((1, 40, 40), np.uint8), nodata=0)
    sink, result = embed(scene, tmp_path / "out", vector_model(**PATCHES))
    assert set(sink.artifacts) == {"stats.json"}
    assert result.data is not None
    assert result.data["notes"][-1] == "There are no vectors: the scene has no data."


def test_a_later_attempt_goes_on_after_any_strip_and_makes_the_same_bytes(tmp_path: Path) -> None:
    scene = write_scene(tmp_path / "scene.tif", pattern(100, 90))
    request = {"outputs": ("embeddings", "geoparquet", "stats")}
    first, _ = embed(scene, tmp_path / "first", vector_model(**PATCHES), **request)
    saved = {}
    for number, (name, content) in enumerate(first.saved.items()):
        (tmp_path / f"saved-{number}").write_bytes(content)
        saved[name] = tmp_path / f"saved-{number}"
        again, _ = embed(scene, tmp_path / f"again-{number}", vector_model(**PATCHES), saved=saved, **request)
        assert len(again.saved) == len(first.saved) - number - 1
        for made, path in first.artifacts.items():
            assert again.artifacts[made].read_bytes() == path.read_bytes()
    assert len(saved) > 1


@pytest.mark.parametrize("prefix", [0, 1])
def test_tokens_are_patches_row_by_row_after_the_prefix(prefix: int, tmp_path: Path) -> None:
    def tokens(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return np.concatenate([np.full((prefix, 3), 9, np.float32), means(8)(pixels).reshape(3, -1).T])

    scene = write_scene(tmp_path / "scene.tif", pattern(50, 60))
    model = vector_model(**PATCHES, prefix_tokens=prefix)
    sink, _ = embed(scene, tmp_path / "out", model, network=tokens)
    np.testing.assert_array_equal(read(sink.artifacts["embeddings.tif"]), expected_of(pattern(50, 60), 8))
    with pytest.raises(ProcessorFailed, match=r"expected \(dimensions, 4, 4\), or \((16|17), dimensions\)"):
        embed(scene, tmp_path / "wrong", model, network=lambda pixels: tokens(pixels)[:-1])


@pytest.mark.parametrize(("options", "problem"), [
    ({"patch_px": 7}, "multiples of patch_px"), ({"halo_px": 4}, "multiples of patch_px"),
    ({"halo_px": 16}, "less than tile_px"), ({"stride_px": 8}, "stride_px is not for embeddings"),
    ({"overlap": "hann"}, "overlap"),
])  # fmt: skip
def test_options_that_cannot_be_are_refused(options: dict[str, Any], problem: str) -> None:
    model = vector_model(**PATCHES)
    with pytest.raises(ConfigError, match=problem):
        RasterEmbedding(model.model_copy(update={"options": {**model.options, **options}}))


def test_patches_of_a_backbone_of_transformers_are_those_of_the_library(tmp_path: Path) -> None:
    config = transformers.Dinov2WithRegistersConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=8, num_channels=1,
        num_register_tokens=3,
    )  # fmt: skip
    network = transformers.Dinov2WithRegistersModel(config).eval()
    network.save_pretrained(tmp_path / "model")
    model = vector_model(**PATCHES, pooling="patches", normalize=False)
    model = model.model_copy(update={"runner": "transformers", "source": str(tmp_path / "model"), "device": "cpu"})
    numbers = pattern(64, 32)
    scene = write_scene(tmp_path / "scene.tif", numbers)
    processor, sink = RasterEmbedding(model), Folder(tmp_path / "out")
    prepared = processor.pre_process(processor.request(scene=str(scene)), Files())
    with closing(BatchingEngine(Runners.installed())) as engine:
        outputs = engine.run(model, prepared.prompts, check=lambda: None)
        processor.post_process(outputs, prepared.context, sink)
    import torch

    with torch.inference_mode():
        tiles = torch.from_numpy(numbers.astype(np.float32).reshape(2, 1, 32, 32))
        hidden = network(pixel_values=tiles).last_hidden_state[:, 4:]
    expected = hidden.numpy().reshape(8, 4, 16).transpose(2, 0, 1)
    np.testing.assert_allclose(read(sink.artifacts["embeddings.tif"]), expected, atol=1e-5)
    with pytest.raises(ConfigError, match="need each other"):
        RasterEmbedding(model.model_copy(update={"options": {**model.options, "pooling": "cls"}}))


def test_the_processor_keeps_the_contract(tmp_path: Path) -> None:
    model = vector_model(**PATCHES).model_copy(update={"limits": Limits(max_pixels=100_000)})
    files = {
        "media://1": write_scene(tmp_path / "1.tif", pattern(211, 99)),
        "media://2": write_scene(tmp_path / "2.tif", pattern(90, 150), nodata=3),
    }
    done = check_processor(
        RasterEmbedding(model),
        {"scene": "media://1", "outputs": ["embeddings", "geoparquet", "stats"]},
        files,
        engine=answers,
        other={"scene": "media://2"},
        limits=model.limits,
        count_is_a_bound=True,
    )
    assert set(done.artifacts) == {"embeddings.tif", "embeddings.parquet", "stats.json"}
    assert done.saved
    check_request_module(RasterEmbedding(model))


@pytest.mark.parametrize(("options", "problem"), [
    ({"tile_px": 64}, "images of 32 x 32 pixels, and options.tile_px is 64"),
    ({"patch_px": 16}, "patches have 8 pixels, and options.patch_px is 16"),
    ({"bands": [{"name": "a", "mean": 0, "std": 1}] * 2}, "takes 1 channels, and the record has 2 bands"),
])  # fmt: skip
def test_tiles_that_the_network_cannot_take_are_refused_at_check(
    options: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=32, patch_size=8,
        num_channels=1,
    )  # fmt: skip
    transformers.ViTModel(config).save_pretrained(tmp_path)
    model = vector_model(**PATCHES, pooling="patches")
    model = model.model_copy(update={"runner": "transformers", "source": str(tmp_path), "device": "cpu"})
    Runners.installed().check(model)
    with pytest.raises(ModelUnavailable, match=problem):
        Runners.installed().check(model.model_copy(update={"options": {**model.options, **options}}))
