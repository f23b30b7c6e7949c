"""Prithvi by TerraTorch in an environment of its own, from one worker beside other models (`make terratorch-env`)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio

from penstock.functions.importable import fitted
from tests.support.stack import running

pytestmark = [pytest.mark.breadth, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / ".venv-terratorch"
PYTHON = ENVIRONMENT / "bin" / "python"
#: Makes a tiny Prithvi and a scene in the folder, and prints the record's fields and TerraTorch's own classes.
MAKE = """
import sys
from pathlib import Path
import numpy as np, torch
from penstock.processors.geo.read.gdal import rasterio
from tests.terratorch.tiny import MEAN, STD, model_args, network, record, save, scene
folder = Path(sys.argv[1])
built = network("segmentation", model_args(num_classes=3))
save(folder / "model", "segmentation", model_args(num_classes=3), built)
scene(folder / "scene.tif")
with rasterio.open(folder / "scene.tif") as file:
    pixels = file.read().astype("float32")
normal = (pixels - np.array(MEAN)[:, None, None]) / np.array(STD)[:, None, None]
with torch.no_grad():
    classes = built(torch.tensor(normal, dtype=torch.float32)[None]).output.argmax(1)[0]
np.save(folder / "classes.npy", classes.numpy().astype("uint8"))
print(record(folder / "model", classes=3).model_dump_json(exclude={"name"}, exclude_defaults=True))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    if not PYTHON.exists():
        pytest.skip("needs TerraTorch: make terratorch-env")
    folder = tmp_path_factory.mktemp("prithvi")
    env = {**fitted(os.environ, PYTHON), "HF_HUB_OFFLINE": "1"}
    env["PYTHONPATH"] += f":{ROOT}"
    words = [str(PYTHON), "-c", MAKE, str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, env=env, check=True)
    return folder, json.loads(done.stdout.splitlines()[-1])


def test_one_worker_serves_prithvi_by_terratorch_and_another_model(
    tmp_path: Path, made: tuple[Path, dict[str, Any]]
) -> None:
    folder, fields = made
    fields = {**fields, "environment": str(ENVIRONMENT)}
    lines = [f"{name} = {_toml(value)}" for name, value in fields.items()]
    (tmp_path / "models.toml").write_text("\n".join(["[models.prithvi]", *lines]))
    config = f'models = ["{tmp_path / "models.toml"}"]\n'
    with running(tmp_path / "data", config=config, model="prithvi") as stack, stack.client() as client:
        result = client.run("prithvi", scene=folder / "scene.tif")
        with rasterio.open(result.classes) as file:
            same = np.mean(file.read(1) == np.load(folder / "classes.npy"))
        assert same > 0.99  # a head so loud that rounding decides some pixels
        about = result.job.provenance
        assert about["software"]["terratorch"].startswith("1.2")
        assert about["model"]["packages"]
        assert client.run("csmask", scene=folder / "scene.tif").classes.exists()


def _toml(value: Any) -> str:
    match value:
        case dict():
            return "{ " + ", ".join(f"{json.dumps(name)} = {_toml(each)}" for name, each in value.items()) + " }"
        case list():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case _:
            return json.dumps(value)
