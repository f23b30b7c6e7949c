"""Ready records, each with a checkpoint of the published layout, a small network and random weights."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

import penstock
from penstock.models import read_catalogue
from penstock.processors.geo.read.gdal import rasterio
from tests.support.command_line import Shell
from tests.support.fake_hub import a_hub
from tests.support.geo.scenes import write_scene
from tests.terratorch.test_backbones import TERRAMIND, backbone, published
from tests.terratorch.tiny import config, model_args, network, save


def added(name: str, repository: str, files: Mapping[str, bytes], folder: Path) -> set[str]:
    """Run `penstock models add` with a hub that has the files; return the names that it pinned."""
    cache = str(folder / "cache")
    with a_hub(repository, files) as hub:
        shell = Shell({"PENSTOCK_MODEL_CACHE": cache, "HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0"}, folder)
        done = asyncio.run(shell("models", "add", name, "--json"))
    assert done.code == 0, done.err
    return set(done.document()["files"])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_MODEL_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("name", "repository", "weights", "classes"),
    [
        ("prithvi-floods", "ibm-nasa-geospatial/Prithvi-EO-2.0-300M-TL-Sen1Floods11", None, ["no water", "water"]),
        (
            "prithvi-burn-scars",
            "ibm-nasa-geospatial/Prithvi-EO-2.0-300M-BurnScars",
            "Prithvi_EO_V2_300M_BurnScars.pt",
            ["not burned", "burn scar"],
        ),
    ],
    ids=["floods", "burn-scars"],
)
def test_a_record_maps_a_scene(
    name: str, repository: str, weights: str | None, classes: list[str], tmp_path: Path
) -> None:
    decoder = {"decoder": "UNetDecoder", "decoder_channels": [32, 16, 8, 8]} if weights else {}
    args = {**model_args(num_classes=2), "backbone_img_size": 512, **decoder}
    built = network("segmentation", args)
    checkpoint = save(tmp_path / "checkpoint", "segmentation", args, built)
    if weights:  # as Lightning saves it
        (checkpoint / "model.safetensors").unlink()
        state = {f"model.{key}": tensor for key, tensor in built.state_dict().items()}
        parameters = config("segmentation", args)["pretrained_cfg"]["model"]["init_args"]
        torch.save({"epoch": 40, "state_dict": state, "hyper_parameters": parameters}, checkpoint / weights)
    pinned = added(name, repository, contents(checkpoint) | {"burn_scars_config.yaml": b"model: {}"}, tmp_path)
    assert pinned == {"config.json", weights or "model.safetensors"}
    numbers = np.random.default_rng(2).integers(1, 9000, (6, 600, 530)).astype(np.uint16)
    scene = write_scene(tmp_path / "scene.tif", numbers)
    with closing(penstock.Engine(catalogue=[tmp_path / "models.toml"])) as engine:
        result = engine.run(
            name,
            scene=scene,
            bands=[1, 2, 3, 4, 5, 6],
            radiometry={"scale": 1e-4, "trust": True},
            out=tmp_path / "out",
        )
    with rasterio.open(tmp_path / "out" / "classes.tif") as file:
        found = file.read(1)
    assert found.shape == (600, 530)
    assert set(np.unique(found)) == {0, 1}
    assert [row["name"] for row in result.data["classes"]] == classes


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
