"""vLLM in an environment of its own, for models of a worker that lacks it (`make vllm-env`)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import penstock
from penstock.functions.importable import fitted
from penstock.processors.geo.sample import write_sample

pytestmark = [pytest.mark.breadth, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / ".venv-vllm"
PYTHON = ENVIRONMENT / "bin" / "python"
RECORDS = """
[models.llama]
title = "Llama"
runner = "vllm"
processor = "openai-chat"
source = "llama"
revision = "1"
environment = "{environment}"
[models.llama.options.engine]
max_model_len = 256
gpu_memory_utilization = 0.2

[models.prithvi]
title = "Prithvi"
runner = "vllm"
processor = "vllm-plugin"
source = "prithvi"
revision = "1"
environment = "{environment}"
[models.prithvi.options]
plugin = "terratorch_segmentation"
[models.prithvi.options.engine]
dtype = "float16"
gpu_memory_utilization = 0.2
"""


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not PYTHON.exists():
        pytest.skip("needs vLLM: make vllm-env")
    folder = tmp_path_factory.mktemp("vllm")
    env = {**fitted(os.environ, PYTHON), "HF_HUB_OFFLINE": "1"}
    for script, name in (("tiny_llama.py", "llama"), ("tiny.py", "prithvi")):
        words = [PYTHON, ROOT / "tests" / "vllm" / script, folder / name]
        subprocess.run(words, check=True, timeout=900, env=env, capture_output=True)
    (folder / "models.toml").write_text(RECORDS.format(environment=ENVIRONMENT))
    return folder / "models.toml"


@pytest.mark.parametrize("name", ["llama", "prithvi"])
def test_a_worker_without_vllm_answers_by_the_vllm_of_an_environment(name: str, catalogue: Path) -> None:
    scene = catalogue.parent / "scene.tif"
    write_sample(scene, size_px=128)
    with penstock.Engine(catalogue=[catalogue], isolated=True) as engine:
        if name == "llama":
            result = engine.run(name, prompt="one two", max_tokens=4, temperature=0)
            assert result.data["usage"]["completion_tokens"] == 4
        else:
            result = engine.run(name, data=scene)
            assert result.artifacts["data.tif"].path.is_file()
        assert str(PYTHON) in programs()


def programs() -> Iterator[str]:
    """Yield the programs of all processes that this one has started."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.ZombieProcess, psutil.NoSuchProcess):
            yield from child.cmdline()[:1]
