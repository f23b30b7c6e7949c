"""Ready records, with checkpoints of the published layouts and random weights."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import penstock
from penstock.catalogue.records import read_catalogue
from penstock.processors.geo.read.gdal import rasterio
from tests.support.command_line import Shell
from tests.support.fake_hub import a_hub
from tests.support.geo.scenes import write_scene
from tests.terratorch.test_backbones import TERRAMIND, backbone, clay_checkpoint, published
from tests.terratorch.test_check import CHECK
from tests.terratorch.test_mmsegmentation import checkpoint, weights
from tests.terratorch.tiny import config, model_args, network, save

FLOODS = "ibm-nasa-geospatial/Prithvi-EO-2.0-300M-TL-Sen1Floods11"
BURN_SCARS = "ibm-nasa-geospatial/Prithvi-EO-2.0-300M-BurnScars"


def flood_files(folder: Path) -> dict[str, bytes]:
    """Return the files of the fine-tune for floods: `config.json` and safetensors."""
    args = {**model_args(num_classes=2), "backbone_img_size": 512}
    checkpoint = save(folder, "segmentation", args, network("segmentation", args))
    return contents(checkpoint)


def burn_scar_files(_: Path) -> dict[str, bytes]:
    """Return the files of the fine-tune for burn scars: a config of the command line, and a checkpoint of Lightning."""
    decoder = {"decoder": "UNetDecoder", "decoder_channels": [32, 16, 8, 4], "rescale": True}
    args = {**model_args(num_classes=2), **decoder, "backbone_img_size": 512}
    weights = {f"model.{name}": tensor for name, tensor in network("segmentation", args).state_dict().items()}
    file = io.BytesIO()
    torch.save({"epoch": 40, "state_dict": weights, "hyper_parameters": {"model_args": args}, "loops": {}}, file)
    trained: dict[str, Any] = config("segmentation", args)["pretrained_cfg"]
    return {
        "burn_scars_config.yaml": yaml.safe_dump({"trainer": {"max_epochs": 100}, **trained}).encode(),
        "Prithvi_EO_V2_300M_BurnScars.pt": file.getvalue(),
        "inference.py": b"raise SystemExit",
        "splits/train.txt": b"T10SEH.2018190.v1",
    }


def added(name: str, repository: str, files: Mapping[str, bytes], folder: Path) -> set[str]:
    """Run `penstock models add` with a hub that has the files; return the names that it pinned."""
    cache = str(folder / "cache")
    with a_hub(repository, files) as hub:
        shell = Shell({"PENSTOCK_MODEL_CACHE": cache, "HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0"}, folder)
        done = asyncio.run(shell("models", "add", name, "--json"))
    assert done.code == 0, done.err
    catalogue = folder / "models.toml"  # TerraTorch is in this environment
    catalogue.write_text(catalogue.read_text().replace('dependencies = ["terratorch>=1.2.11,<2"]\n', ""))
    return set(done.document()["files"])


def small(folder: Path, sizes: Mapping[str, str]) -> Path:
    """Write other sizes of the network into the record that was added; return the catalogue."""
    catalogue = folder / "models.toml"
    text = catalogue.read_text()
    for before, after in sizes.items():
        assert before in text
        text = text.replace(before, after)
    catalogue.write_text(text)
    return catalogue


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_MODEL_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("name", "repository", "made", "fetched", "classes"),
    [
        ("prithvi-floods", FLOODS, flood_files, {"config.json", "model.safetensors"}, ["no water", "water"]),
        ("prithvi-burn-scars", BURN_SCARS, burn_scar_files,
         {"burn_scars_config.yaml", "Prithvi_EO_V2_300M_BurnScars.pt"}, ["not burnt", "burn scar"]),
    ],
)  # fmt: skip
def test_the_record_maps_a_scene(
    name: str, repository: str, made: Callable[[Path], dict[str, bytes]], fetched: set[str], classes: list[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    assert added(name, repository, made(tmp_path / "checkpoint"), tmp_path) - {"splits/train.txt"} == fetched
    numbers = np.random.default_rng(2).integers(1, 9000, (6, 600, 530)).astype(np.uint16)
    scene = write_scene(tmp_path / "scene.tif", numbers)
    with closing(penstock.Engine(catalogue=[tmp_path / "models.toml"])) as engine:
        result = engine.run(
            name, scene=scene, bands=[1, 2, 3, 4, 5, 6], radiometry={"scale": 1e-4, "trust": True}, out=tmp_path / "out"
        )
    with rasterio.open(tmp_path / "out" / "classes.tif") as file:
        found = file.read(1)
    assert found.shape == (600, 530)
    assert set(np.unique(found)) == {0, 1}
    assert [row["name"] for row in result.data["classes"]] == classes


def biomass_files() -> tuple[dict[str, bytes], torch.nn.Module]:
    """Return the files of the fine-tune for biomass, of a smaller Swin transformer, and TerraTorch's own network."""
    from terratorch.models import PrithviModelFactory

    args: dict[str, Any] = {
        "decoder": "UperNetDecoder",
        "pretrained": False,
        "backbone": "prithvi_swin_B",
        "backbone_drop_path_rate": 0.3,
        "decoder_channels": 32,
        "in_channels": 6,
        "bands": ["BLUE", "GREEN", "RED", "NIR_NARROW", "SWIR_1", "SWIR_2"],
        "num_frames": 1,
        "head_dropout": 0.16,
        "head_final_act": "torch.nn.ReLU",
        "head_learned_upscale_layers": 2,
        # the published config has none of these
        "backbone_depths": [1, 1, 1, 1],
        "backbone_embed_dim": 16,
        "backbone_num_heads": [1, 1, 1, 1],
    }
    task = {"model_args": args, "model_factory": "PrithviModelFactory", "loss": "rmse", "ignore_index": -1}
    torch.manual_seed(8)
    own: torch.nn.Module = PrithviModelFactory().build_model(task="regression", **args).eval()
    with torch.no_grad():
        own.get_parameter("head.head.2.weight").mul_(300)
        own.get_parameter("head.head.2.bias").fill_(50)
    file = io.BytesIO()
    torch.save({"epoch": 3, "state_dict": {f"model.{name}": one for name, one in own.state_dict().items()}}, file)
    model = {"class_path": "terratorch.tasks.PixelwiseRegressionTask", "init_args": task}
    config_file = yaml.safe_dump({"seed_everything": 42, "model": model}).encode()
    return {"config.yaml": config_file, "biomass_model.ckpt": file.getvalue(), "README.md": b"Biomass"}, own


def test_biomass_is_what_terratorch_says_in_tonnes_per_hectare(tmp_path: Path) -> None:
    files, own = biomass_files()
    fetched = added("granite-biomass", "ibm-granite/granite-geospatial-biomass", files, tmp_path)
    assert fetched - {"README.md"} == {"config.yaml", "biomass_model.ckpt"}
    options = read_catalogue(tmp_path / "models.toml")["granite-biomass"].options
    numbers = np.random.default_rng(2).integers(200, 4000, (6, 224, 224)).astype(np.int16)
    scene = write_scene(tmp_path / "scene.tif", numbers, descriptions=("B02", "B03", "B04", "B8A", "B11", "B12"))
    with closing(penstock.Engine(catalogue=[tmp_path / "models.toml"])) as engine:
        result = engine.run(
            "granite-biomass", scene=scene, radiometry={"scale": 1, "trust": True}, uncertainty="flips",
            out=tmp_path / "out",
        )  # fmt: skip
    mean, std = (np.array([band[key] for band in options["bands"]])[:, None, None] for key in ("mean", "std"))
    pixels = torch.from_numpy(((numbers - mean) / std).astype(np.float32))[None]
    flips: list[list[int]] = [[], [-1], [-2], [-2, -1]]
    with torch.inference_mode():
        answers = [own(torch.flip(pixels, axes)).output[0].flip(axes).numpy() for axes in flips]
    expected = answers[0]
    assert expected.std() > 1, "the network says the same everywhere: nothing is compared"
    with rasterio.open(tmp_path / "out" / "values.tif") as file:
        assert file.units == ("t/ha",)
        np.testing.assert_allclose(file.read(1), expected, rtol=1e-4, atol=1e-3)
    with rasterio.open(tmp_path / "out" / "uncertainty.tif") as file:
        np.testing.assert_allclose(file.read(1), np.std(answers, axis=0), rtol=1e-3, atol=1e-3)
    assert result.data["values"][0]["name"] == "biomass"
    assert result.data["uncertainty"]["values"][0]["mean"] > 0


@pytest.mark.parametrize("name", ["prithvi-embeddings", "terramind-embeddings"])
def test_a_record_embeds_a_scene(name: str, tmp_path: Path) -> None:
    """The record of TerraMind names the size of its network, which is made smaller here."""
    if name == "prithvi-embeddings":
        files, bands = contents(published(tmp_path / "published")), 6
    else:
        (tmp_path / "published").mkdir()
        whole = backbone(backbone=TERRAMIND["backbone"], modalities=["S2L2A", "S1GRD"])
        torch.save(whole.state_dict(), tmp_path / "published" / "TerraMind_v1_base.pt")
        files, bands = contents(tmp_path / "published"), 12
    repository = {
        "prithvi-embeddings": "ibm-nasa-geospatial/Prithvi-EO-2.0-300M-TL",
        "terramind-embeddings": "ibm-esa-geospatial/TerraMind-1.0-base",
    }[name]
    catalogue = tmp_path / "models.toml"
    assert added(name, repository, files, tmp_path) == set(files)
    assert read_catalogue(catalogue)[name].options["pooling"] == "patches"
    catalogue.write_text(catalogue.read_text().replace("terramind_v1_base", TERRAMIND["backbone"]))
    numbers = np.random.default_rng(2).integers(1, 9000, (bands, 250, 240)).astype(np.uint16)
    scene = write_scene(tmp_path / "scene.tif", numbers)
    with closing(penstock.Engine(catalogue=[catalogue])) as engine:
        result = engine.run(
            name,
            scene=scene,
            bands=list(range(1, bands + 1)),
            radiometry={"scale": 1, "trust": True},
            out=tmp_path / "out",
        )
    assert result.data["embeddings"] == {
        "count": 240, "dimensions": 192, "width": 15, "height": 16, "pixels_per_side": 16,
    }  # fmt: skip
    with rasterio.open(tmp_path / "out" / "embeddings.tif") as file:
        assert file.read().std(axis=(1, 2)).mean() > 1e-3


def test_clay_embeds_a_scene_by_the_one_file_of_its_version(tmp_path: Path) -> None:
    from terratorch.models.backbones.clay_v15.model import Encoder

    encoder = Encoder(
        mask_ratio=0.0, shuffle=False, dim=24, depth=2, heads=2, dim_head=8, mlp_ratio=4.0, patch_size=8
    )  # fmt: skip
    file = clay_checkpoint(encoder, tmp_path / "published" / "clay-v1.5.ckpt")
    files = {"v1.5/clay-v1.5.ckpt": file.read_bytes(), "v1/clay-v1-base.ckpt": b"another version"}
    assert added("clay-embeddings", "made-with-clay/Clay", files, tmp_path) == set()
    sizes = {"dim = 1024": "dim = 24", "depth = 24": "depth = 2", "heads = 16": "heads = 2", "head = 64": "head = 8"}
    catalogue = small(tmp_path, sizes)
    CHECK(read_catalogue(catalogue)["clay-embeddings"].model_copy(update={"source": str(file)}))
    numbers = np.random.default_rng(2).integers(1, 9000, (10, 600, 530)).astype(np.uint16)
    scene = write_scene(tmp_path / "scene.tif", numbers)
    with closing(penstock.Engine(catalogue=[catalogue])) as engine:
        result = engine.run(
            "clay-embeddings", scene=scene, bands=list(range(1, 11)), radiometry={"scale": 1, "trust": True},
            outputs=["embeddings", "geoparquet", "stats"], out=tmp_path / "out",
        )  # fmt: skip
    assert result.data["embeddings"] == {
        "count": 9, "dimensions": 24, "width": 3, "height": 3, "pixels_per_side": 256,
    }  # fmt: skip
    with rasterio.open(tmp_path / "out" / "embeddings.tif") as image:
        assert image.read().std(axis=(1, 2)).mean() > 1e-3
    assert (tmp_path / "out" / "embeddings.parquet").is_file()


def test_crops_are_mapped_from_three_dates_by_a_checkpoint_of_mmsegmentation(tmp_path: Path) -> None:
    name = "multi_temporal_crop_classification_Prithvi_100M.pth"
    repository = "ibm-nasa-geospatial/Prithvi-EO-1.0-100M-multi-temporal-crop-classification"
    file = checkpoint(tmp_path / "published" / name, weights(3))
    files = {name: file.read_bytes(), "config.yaml": b"", f"{Path(name).stem}.py": b"raise SystemExit"}
    assert added("prithvi-crops", repository, files, tmp_path) == set()
    catalogue = small(tmp_path, {"depth = 6": "depth = 2, embed_dim = 32, channels = 8", "heads = 8": "heads = 4"})
    CHECK(read_catalogue(catalogue)["prithvi-crops"].model_copy(update={"source": str(file)}))
    rng = np.random.default_rng(2)
    dates = [
        {"scene": write_scene(tmp_path / f"{i}.tif", rng.integers(1, 5000, (6, 300, 250)).astype(np.uint16)),
         "datetime": f"2024-0{3 + 2 * i}-01T10:00:00Z"}
        for i in range(3)
    ]  # fmt: skip
    with closing(penstock.Engine(catalogue=[catalogue])) as engine:
        result = engine.run(
            "prithvi-crops", dates=dates, bands=[1, 2, 3, 4, 5, 6], radiometry={"scale": 1, "trust": True},
            out=tmp_path / "out",
        )  # fmt: skip
    with rasterio.open(tmp_path / "out" / "classes.tif") as image:
        found = image.read(1)
    assert found.shape == (300, 250)
    assert len(set(np.unique(found)) & set(range(13))) > 1
    assert [row["name"] for row in result.data["classes"]][2] == "corn"
