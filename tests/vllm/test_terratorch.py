"""TerraTorch's segmentation plugin through Penstock, beside vLLM's own answer for the same file: `make test-vllm`."""

from __future__ import annotations

import base64
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs an environment with vLLM: make test-vllm")
pytest.importorskip("terratorch", reason="needs an environment with TerraTorch: make test-vllm")

import numpy as np
import psutil

from penstock.errors import InvalidInput, MediaUnreadable, ProcessorFailed
from penstock.local.library import Engine
from penstock.processors.geo.read.gdal import rasterio

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.filterwarnings("ignore")]


def classes(data: bytes) -> Any:
    with rasterio.MemoryFile(data) as file, file.open() as raster:
        return raster.read(1)


def test_every_scene_becomes_the_bytes_of_vllms_own_answer(
    engine: Engine, answers: Mapping[str, dict[str, Any]], scenes: Mapping[str, Path], tmp_path: Path
) -> None:
    assert len(scenes) >= 2
    for name, scene in scenes.items():
        result = engine.run("prithvi", data=scene, out=tmp_path / name)
        assert result.data == {"data": {"data_format": "b64_json", "data": {"artifact": "data.tif"}}}
        theirs = base64.b64decode(answers[name]["data"]["data"])
        assert (tmp_path / name / "data.tif").read_bytes() == theirs, name
        assert len(np.unique(classes(theirs))) > 1, f"{name}: a map of one class proves little"


def test_bands_are_chosen_as_vllms_clients_choose_them(
    engine: Engine, scenes: Mapping[str, Path], tmp_path: Path
) -> None:
    maps = {}
    for name, indices in (("straight", [0, 1, 2, 3, 4, 5]), ("turned", [5, 4, 3, 2, 1, 0])):
        engine.run("prithvi", data=scenes["padded"], indices=indices, out=tmp_path / name)
        maps[name] = classes((tmp_path / name / "data.tif").read_bytes())
    assert maps["straight"].shape == (200, 200)
    assert (maps["straight"] != maps["turned"]).any()


def test_what_cannot_be_mapped_says_why_and_the_next_scene_is_mapped(
    engine: Engine, scenes: Mapping[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "text.tif").write_text("no raster")
    with pytest.raises(MediaUnreadable, match="not recognized as being in a supported file format"):
        engine.run("prithvi", data=tmp_path / "text.tif")
    with pytest.raises(ProcessorFailed, match="index 6 is out of bounds"):
        engine.run("prithvi", data=scenes["whole"], indices=[0, 1, 2, 3, 4, 6])
    with pytest.raises(InvalidInput, match="mean length and number of channels do not match"):
        engine.run("prithvi", data=scenes["whole"], indices=[0, 1, 2])
    assert engine.run("prithvi", data=scenes["whole"]).artifacts.keys() == {"data.tif"}


def test_an_engine_that_is_killed_fails_its_job_and_is_started_for_the_next(
    engine: Engine, scenes: Mapping[str, Path]
) -> None:
    engine.run("prithvi", data=scenes["whole"])
    cores = [child for child in psutil.Process().children() if "EngineCore" in " ".join(child.cmdline())]
    assert len(cores) == 1
    os.kill(cores[0].pid, signal.SIGKILL)
    with pytest.raises(ProcessorFailed, match="vLLM's engine died"):
        engine.run("prithvi", data=scenes["whole"])
    assert engine.run("prithvi", data=scenes["whole"]).artifacts.keys() == {"data.tif"}
