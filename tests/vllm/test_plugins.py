"""Plugins of the current and of an older form, in packages that vLLM finds, with vLLM itself."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs an environment with vLLM: make test-vllm")
pytest.importorskip("terratorch", reason="needs an environment with TerraTorch: make test-vllm")

import numpy as np

from penstock.errors import InvalidInput
from penstock.local.library import Engine
from penstock.processors.vllm.options import TERRATORCH
from tests.vllm.conftest import ENGINE, own_json
from tests.vllm.tiny import BANDS, CLASSES, SIZE_PX

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.filterwarnings("ignore")]

PACKAGES = Path(__file__).with_name("plugins")
RECORD = """
[models.{name}]
title = "Scores"
runner = "vllm"
processor = "vllm-plugin"
source = "{source}"
revision = "1"
max_batch = 1
warm_up = false
options = {{ plugin = "{name}", media = ["tiles"], engine = {engine} }}
"""
TILES = 2
FORMS = ("tile_scores", "tile_scores_older")


@pytest.fixture(scope="module")
def installed() -> Iterator[None]:
    """Have this process and its children find the package of plugins."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PACKAGES)
        patch.setenv("PYTHONPATH", str(PACKAGES), prepend=os.pathsep)
        yield


@pytest.fixture(scope="module")
def tiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiles") / "tiles.npy"
    np.save(path, np.random.default_rng(0).normal(size=(TILES, len(BANDS), SIZE_PX, SIZE_PX)).astype(np.float32))
    return path


@pytest.fixture(scope="module")
def own(installed: None, tiny: Path, tiles: Path) -> Any:  # noqa: ARG001  (the package is found)
    """Return vLLM's own answer of the plugin of the current form; its engine has ended then."""
    options = {**ENGINE, **TERRATORCH, "model": str(tiny), "runner": "pooling", "max_num_seqs": 1}
    asked = {"engine": {**options, "io_processor_plugin": "tile_scores"}, "data": {"tiles": str(tiles)}}
    return own_json("own_plugin.py", tiles.parent, asked)


@pytest.fixture(scope="module")
def engine(own: object, tiny: Path, tiles: Path) -> Iterator[Engine]:  # noqa: ARG001  (one engine at a time)
    options = ", ".join(f"{name} = {json.dumps(value)}" for name, value in ENGINE.items())
    records = (RECORD.format(name=name, source=tiny, engine=f"{{ {options} }}") for name in FORMS)
    (catalogue := tiles.parent / "models.toml").write_text("".join(records))
    with Engine(catalogue=[catalogue], isolated=True) as engine:
        yield engine


@pytest.mark.parametrize("form", FORMS)
def test_a_plugin_of_either_form_gives_vllms_own_answer(engine: Engine, own: Any, tiles: Path, form: str) -> None:
    assert engine.run(form, tiles=tiles).data == {"data": own}
    assert np.shape(own["means"]) == (TILES, CLASSES)
    assert own["bands"] == len(BANDS)
    (tiles.parent / "text.npy").write_text("no array")
    with pytest.raises(InvalidInput, match="The plugin rejects its input"):
        engine.run(form, tiles=tiles.parent / "text.npy")
