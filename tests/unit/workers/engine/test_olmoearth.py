"""OlmoEarth's vectors are those of its own library, in the layout that is published, with random weights."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import penstock
from penstock.errors import ModelUnavailable, ProcessorFailed
from penstock.models import Model
from penstock.processors.base import Prompt
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.registry import Registry
from penstock.processors.testing import Finished, check_processor
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.processing import InThread
from penstock.workers.warmup import warm
from tests.support.command_line import Shell
from tests.support.fake_hub import a_hub
from tests.support.geo.scenes import write_scene

pytest.importorskip("olmoearth_pretrain_minimal", reason="needs pip install '.[olmoearth]'")

SIDE, PATCH = 32, 4
TIME = "2020-03-27T10:00:00Z"
OPTICAL = ("B02", "B03", "B04", "B08", "B05", "B06", "B07", "B8A", "B11", "B12", "B01", "B09")
S2 = [{"name": name, "mean": 100.0 * at, "std": 1000.0 + at} for at, name in enumerate(OPTICAL)]
S1 = [{"name": "VV", "mean": -33.3, "std": 43.4}, {"name": "VH", "mean": -38.2, "std": 40.9}]
FLOATS = [{"dtypes": ["float32", "uint16"], "scale": 1.0}]
RADAR = {"name": "sentinel1", "bands": S1, "default_radiometry": FLOATS, "decibels": True}
ENCODER = {"embedding_size": 32, "depth": 2, "num_heads": 4, "mlp_ratio": 2.0, "max_patch_size": 8}
NAMES = ["sentinel2_l2a", "sentinel1", "landsat", "worldcover"]


def published(folder: Path, **encoder: Any) -> tuple[Path, Any]:
    """Write a tiny network as OlmoEarth's are published, and return its directory and the library's own network."""
    from olmoearth_pretrain_minimal.olmoearth_pretrain_v1.nn.flexi_vit import EncoderConfig, PredictorConfig
    from olmoearth_pretrain_minimal.olmoearth_pretrain_v1.nn.latent_mim import LatentMIMConfig

    sizes = {"supported_modality_names": NAMES, "max_sequence_length": 12}
    decoder = {"encoder_embedding_size": 32, "decoder_embedding_size": 32, "depth": 1, "num_heads": 4, "mlp_ratio": 2.0}
    config = LatentMIMConfig(
        encoder_config=EncoderConfig(**ENCODER, **sizes, **encoder), decoder_config=PredictorConfig(**decoder, **sizes)
    )
    torch.manual_seed(4)
    own = config.build().eval()
    folder.mkdir()
    torch.save(own.state_dict(), folder / "weights.pth")
    text = json.dumps(config.as_config_dict()).replace("olmoearth_pretrain_minimal.olmoearth_pretrain_v1.", "helios.")
    masking = {"masking_config": {"strategy_config": {"only_decode_modalities": ["worldcover"]}}}
    (folder / "config.json").write_text(json.dumps({"model": json.loads(text), "train_module": masking}))
    return folder, own


def record(source: Path, **options: Any) -> Model:
    given = {
        "tile_px": SIDE,
        "patch_px": PATCH,
        "pooling": "patches",
        "normalize": False,
        "modality": "sentinel2_l2a",
        "bands": S2,
        "default_radiometry": FLOATS,
        "coordinates": {"time": "needed"},
        **options,
    }
    return Model(
        name="olmo",
        title="A tiny OlmoEarth",
        runner="olmoearth",
        processor="raster-embedding",
        source=str(source),
        revision="1",
        options={name: value for name, value in given.items() if value is not None},
    )


@pytest.fixture
def engine() -> Iterator[BatchingEngine]:
    with closing(BatchingEngine(Runners.installed())) as engine:
        yield engine


def optical(path: Path, seed: int = 1) -> tuple[Path, npt.NDArray[np.uint16]]:
    numbers = np.random.default_rng(seed).integers(1, 4000, (12, SIDE, SIDE)).astype(np.uint16)
    return write_scene(path, numbers, descriptions=OPTICAL), numbers


def embed(engine: BatchingEngine, model: Model, request: dict[str, Any], folder: Path) -> npt.NDArray[np.float32]:
    parts = [*request.get("dates", [request]), *request.get("modalities", [])]
    finished: Finished = check_processor(
        Registry.imported().processor_for(model),
        request,
        {part["scene"]: Path(part["scene"].removeprefix("media://")) for part in parts},
        engine=lambda prompts: engine.run(model, prompts, check=lambda: None),
        other={**request, "outputs": ["stats"]},
    )
    path = folder / "read.tif"
    path.write_bytes(finished.artifacts["embeddings.tif"][1])
    with rasterio.open(path) as file:
        return np.asarray(file.read())


def scaled(numbers: npt.NDArray[Any], bands: list[dict[str, Any]]) -> torch.Tensor:
    """Return (1, rows, columns, 1, bands), as the library takes an image."""
    mean, std = (np.array([band[key] for band in bands])[:, None, None] for key in ("mean", "std"))
    values = ((numbers.astype(np.float64) - mean) / std).astype(np.float32)
    return torch.from_numpy(values.transpose(1, 2, 0))[None, :, :, None]


def answer(
    own: Any, time: list[list[int]], spatial: bool = True, patch_px: int = PATCH, **images: torch.Tensor
) -> npt.NDArray[np.float32]:
    """Return the mean tokens of the library's own forward, (dimensions, rows, columns) or (dimensions)."""
    from olmoearth_pretrain_minimal.olmoearth_pretrain_v1.nn.flexi_vit import PoolingType
    from olmoearth_pretrain_minimal.olmoearth_pretrain_v1.utils.datatypes import MaskedOlmoEarthSample

    sets = {"sentinel2_l2a": 3, "sentinel1": 1}
    masks = {f"{name}_mask": torch.zeros(*one.shape[:-1], sets[name]).long() for name, one in images.items()}
    sample = MaskedOlmoEarthSample(timestamps=torch.tensor([time]), **images, **masks)
    with torch.inference_mode():
        tokens = own.encoder(sample, patch_size=patch_px if spatial else 8, input_res=10, fast_pass=True)
        found = tokens["tokens_and_masks"].pool_unmasked_tokens(PoolingType.MEAN, spatial_pooling=spatial)
    return np.moveaxis(found[0].numpy(), -1, 0)


@pytest.mark.parametrize("version", ["v1", "v1.2"])
def test_vectors_of_two_sensors_are_those_of_the_library(version: str, engine: BatchingEngine, tmp_path: Path) -> None:
    newer: dict[str, Any] = {}
    if version == "v1.2":
        from olmoearth_pretrain_minimal.olmoearth_pretrain_v1.nn.tokenization import (
            ModalityTokenization,
            TokenizationConfig,
        )

        groups = {"sentinel2_l2a": ModalityTokenization(band_groups=[list(OPTICAL)])}
        newer = {
            "tokenization_config": TokenizationConfig(overrides=groups),
            "use_linear_patch_embed": True,
            "position_encoding": "rope_3d_mixed",
        }
    folder, own = published(tmp_path / "olmo", **newer)
    path, numbers = optical(tmp_path / "s2.tif")
    radar = np.random.default_rng(2).uniform(-25, -2, (2, SIDE, SIDE)).astype(np.float32)
    other = write_scene(tmp_path / "s1.tif", radar, descriptions=("VV", "VH"))
    request = {
        "scene": f"media://{path}",
        "datetime": TIME,
        "modalities": [{"name": "sentinel1", "scene": f"media://{other}"}],
        "outputs": ["embeddings"],
    }
    found = embed(engine, record(folder, modalities=[RADAR]), request, tmp_path)
    images = {"sentinel2_l2a": scaled(numbers, S2), "sentinel1": scaled(radar, S1)}
    np.testing.assert_allclose(found, answer(own, [[27, 2, 2020]], **images), rtol=1e-4, atol=1e-5)
    for wrong in (
        answer(own, [[27, 8, 2020]], **images),
        answer(own, [[27, 2, 2020]], sentinel2_l2a=images["sentinel2_l2a"]),
    ):
        assert abs(wrong - found).max() > 1e-4, "the time and each sensor must count"


def test_dates_and_whole_tiles(engine: BatchingEngine, tmp_path: Path) -> None:
    folder, own = published(tmp_path / "olmo")
    scenes = [optical(tmp_path / f"{at}.tif", at) for at in range(3)]
    times = ["2019-12-31T23:00:00Z", "2020-02-29T10:00:00Z", "2020-12-31T10:00:00Z"]
    dates = [{"scene": f"media://{path}", "datetime": time} for (path, _), time in zip(scenes, times, strict=True)]
    model = record(folder, dates=3, pooling="mean", patch_px=None)
    found = embed(engine, model, {"dates": dates, "outputs": ["embeddings"]}, tmp_path)
    images = torch.cat([scaled(numbers, S2) for _, numbers in scenes], dim=3)
    expected = answer(own, [[31, 11, 2019], [29, 1, 2020], [31, 11, 2020]], spatial=False, sentinel2_l2a=images)
    np.testing.assert_allclose(found[:, 0, 0], expected, rtol=1e-4, atol=1e-5)
    other = {"name": "unit", "options": {**model.options, "normalize": True}}
    unit = embed(engine, model.model_copy(update=other), {"dates": dates, "outputs": ["embeddings"]}, tmp_path)
    assert np.linalg.norm(unit[:, 0, 0]) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("processor", ["raster-embedding", "tensor"])
def test_a_declared_pair_serves(processor: str, tmp_path: Path) -> None:
    model, processing = record(published(tmp_path / "olmo")[0]), InThread(Registry.imported())
    if processor == "tensor":
        inputs = {"pixels": {"shape": [12, SIDE, SIDE]}, "temporal_coords": {"shape": [1, 2]}}
        model = model.model_copy(update={"processor": processor, "options": {"inputs": inputs}})
    assert processing.entry(model).problem is None
    check(model)
    with closing(BatchingEngine(Runners.installed())) as engine:
        assert warm(model, processing, engine, tmp_path / "dummy", check=lambda: None).largest_batch >= 1


def check(model: Model) -> None:
    Runners.installed().check(model)


def test_the_ready_record_embeds_a_scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record and the normalisation are those of the library: 0 and 1 are two deviations from the mean."""
    from olmoearth_pretrain_minimal import Normalizer
    from olmoearth_pretrain_minimal.olmoearth_pretrain_v1.utils.constants import Modality

    folder, own = published(tmp_path / "olmo")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    cache = str(tmp_path / "cache")
    monkeypatch.setenv("PENSTOCK_MODEL_CACHE", cache)
    with a_hub("allenai/OlmoEarth-v1_2-Base", {**files, "README.md": b"words"}) as hub:
        shell = Shell({"PENSTOCK_MODEL_CACHE": cache, "HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0"}, tmp_path)
        done = asyncio.run(shell("models", "add", "olmoearth-embeddings", "--json"))
    assert done.code == 0, done.err
    assert set(done.document()["files"]) == {"config.json", "weights.pth"}
    catalogue = tmp_path / "models.toml"  # the library is in this environment
    catalogue.write_text(re.sub(r"(?m)^dependencies = .*\n", "", catalogue.read_text()))
    numbers = np.random.default_rng(3).integers(1, 4000, (12, 128, 128)).astype(np.uint16)
    scene = write_scene(tmp_path / "s2.tif", numbers, descriptions=OPTICAL)
    with closing(penstock.Engine(catalogue=[catalogue])) as engine:
        result = engine.run(
            "olmoearth-embeddings", scene=scene, datetime=TIME, radiometry={"scale": 1, "trust": True},
            out=tmp_path / "out",
        )  # fmt: skip
    with rasterio.open(tmp_path / "out" / "embeddings.tif") as file:
        found = file.read()
    image = Normalizer().normalize(Modality.SENTINEL2_L2A, numbers.transpose(1, 2, 0)[None, :, :, None])
    expected = answer(own, [[27, 2, 2020]], patch_px=8, sentinel2_l2a=torch.from_numpy(image).float())
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    assert result.data["embeddings"]["pixels_per_side"] == 8


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"modality": None}, "options.modality must be one of sentinel2_l2a, sentinel1, landsat"),
        ({"modality": "worldcover"}, r"options.modality and options.modalities name worldcover \(12 bands\)"),
        ({"coordinates": {"time": "optional"}}, "the network needs the time"),
        ({"bands": S2[::-1]}, "the bands of sentinel2_l2a must be B02, B03, B04, B08"),
        ({"bands": S2[:6]}, "the bands of sentinel2_l2a must be B02"),
        ({"modalities": [{**RADAR, "bands": S1[::-1]}]}, "the bands of sentinel1 must be VV, VH"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    folder, _ = published(tmp_path / "olmo")
    check(record(folder))
    with pytest.raises(ModelUnavailable, match=said):
        check(record(folder, **options))


def test_a_directory_that_is_none_is_refused(tmp_path: Path) -> None:
    folder, _ = published(tmp_path / "olmo")
    config = json.loads((folder / "config.json").read_text())
    config["model"]["encoder_config"]["_CLASS_"] = "subprocess.Popen"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelUnavailable, match=r"names the class subprocess\.Popen, which is none of OlmoEarth"):
        check(record(folder))
    (folder / "config.json").write_text('{"model": {}}')
    with pytest.raises(ModelUnavailable, match="cannot load its directory"):
        check(record(folder))
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelUnavailable, match=r"config.json cannot be read"):
        check(record(folder))
    (folder / "weights.pth").unlink()
    (folder / "config.json").write_text("{}")
    with pytest.raises(ModelUnavailable, match="lacks the weights"):
        check(record(folder))


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    folder, _ = published(tmp_path / "olmo")
    torch.save({"encoder.x": torch.zeros(2)}, folder / "weights.pth")
    with pytest.raises(ModelUnavailable, match="cannot load its directory"):
        Runners.installed().load(record(folder))


def test_prompts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    folder, _ = published(tmp_path / "olmo")
    with closing(Runners.installed().load(record(folder))) as runner:
        pixels, time = np.zeros((12, SIDE, SIDE), np.float32), np.float32([[2020, 86]])
        assert runner.memory_bytes > 0
        with pytest.raises(ProcessorFailed, match=r"`pixels`, a float32 array \(12, height, width\)"):
            runner.admit(Prompt({"pixels": pixels[:6], "temporal_coords": time}))
        with pytest.raises(ProcessorFailed, match=r"`temporal_coords`, a float32 array \(1, 2\)"):
            runner.admit(Prompt({"pixels": pixels}))
