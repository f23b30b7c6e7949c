"""The ready record of Prithvi for floods, with a checkpoint of the published layout and random weights."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.processors.geo.read.gdal import rasterio
from tests.support.command_line import Shell
from tests.support.fake_hub import a_hub
from tests.support.geo.scenes import write_scene
from tests.terratorch.tiny import model_args, network, save

REPOSITORY = "ibm-nasa-geospatial/Prithvi-EO-2.0-300M-TL-Sen1Floods11"


def test_the_record_for_floods_maps_a_scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = {**model_args(num_classes=2), "backbone_img_size": 512}
    checkpoint = save(tmp_path / "checkpoint", "segmentation", args, network("segmentation", args))
    files = {path.name: path.read_bytes() for path in checkpoint.iterdir()}
    cache = str(tmp_path / "cache")
    monkeypatch.setenv("PENSTOCK_MODEL_CACHE", cache)
    with a_hub(REPOSITORY, files) as hub:
        shell = Shell({"PENSTOCK_MODEL_CACHE": cache, "HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0"}, tmp_path)
        added = asyncio.run(shell("models", "add", "prithvi-floods", "--json"))
    assert added.code == 0, added.err
    assert set(added.document()["files"]) == {"config.json", "model.safetensors"}
    numbers = np.random.default_rng(2).integers(1, 9000, (6, 600, 530)).astype(np.uint16)
    scene = write_scene(tmp_path / "scene.tif", numbers)
    with closing(penstock.Engine(catalogue=[tmp_path / "models.toml"])) as engine:
        result = engine.run(
            "prithvi-floods",
            scene=scene,
            bands=[1, 2, 3, 4, 5, 6],
            radiometry={"scale": 1e-4, "trust": True},
            out=tmp_path / "out",
        )
    with rasterio.open(tmp_path / "out" / "classes.tif") as file:
        classes = file.read(1)
    assert classes.shape == (600, 530)
    assert set(np.unique(classes)) == {0, 1}
    assert [row["name"] for row in result.data["classes"]] == ["no water", "water"]
