"""The ready records of Prithvi, with checkpoints of the published layouts and random weights."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import penstock
from penstock.processors.geo.read.gdal import rasterio
from tests.support.command_line import Shell
from tests.support.fake_hub import a_hub
from tests.support.geo.scenes import write_scene
from tests.terratorch.tiny import config, model_args, network, save

FLOODS = "ibm-nasa-geospatial/Prithvi-EO-2.0-300M-TL-Sen1Floods11"
BURN_SCARS = "ibm-nasa-geospatial/Prithvi-EO-2.0-300M-BurnScars"


def flood_files(folder: Path) -> dict[str, bytes]:
    """Return the files of the fine-tune for floods: `config.json` and safetensors."""
    args = {**model_args(num_classes=2), "backbone_img_size": 512}
    checkpoint = save(folder, "segmentation", args, network("segmentation", args))
    return {path.name: path.read_bytes() for path in checkpoint.iterdir()}


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    cache = str(tmp_path / "cache")
    monkeypatch.setenv("PENSTOCK_MODEL_CACHE", cache)
    with a_hub(repository, made(tmp_path / "checkpoint")) as hub:
        shell = Shell({"PENSTOCK_MODEL_CACHE": cache, "HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0"}, tmp_path)
        added = asyncio.run(shell("models", "add", name, "--json"))
    assert added.code == 0, added.err
    assert set(added.document()["files"]) - {"splits/train.txt"} == fetched
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
