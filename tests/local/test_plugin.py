"""Plugins: the example as a stranger installs it, and broken ones beside it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from penstock.client.answers import PenstockAPIError
from tests.support.catalogues import penstock
from tests.support.polling import wait_for
from tests.support.stack import running

pytestmark = pytest.mark.breadth
PLUGIN = Path(__file__).parents[2] / "examples" / "plugin"

#: Code of a distribution that names one processor and breaks when it is imported.
RAISES = "raise RuntimeError('no licence file')"
CRASHES = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
LEAVES = "import sys; sys.exit(0)"

RECORD = """
[models.{name}]
title = "Its plugin breaks"
runner = "fake"
processor = "{name}"
source = "."
revision = "1"
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the example's wheel installed and three plugins that break when they are imported."""
    wheels, site = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("site")
    source = shutil.copytree(PLUGIN, tmp_path_factory.mktemp("source") / "plugin")  # building leaves files behind
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", wheels, source], check=True)
    [wheel] = wheels.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", site, wheel], check=True)
    for name, code in {"raises": RAISES, "crashes": CRASHES, "leaves": LEAVES}.items():
        broken_plugin(site, name, code)
    return site


def broken_plugin(site: Path, name: str, code: str) -> None:
    (site / f"plugin_that_{name}.py").write_text(code)
    info = site / f"plugin_that_{name}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: plugin-that-{name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[penstock.io_processors]\n{name} = plugin_that_{name}:Processor\n")


@pytest.fixture
def folder(installed: Path, tmp_path: Path) -> Path:
    """Return a folder with catalogues, the example's model, and two pictures."""
    (tmp_path / "broken.toml").write_text("".join(RECORD.format(name=n) for n in ("raises", "crashes", "leaves")))
    Image.new("RGB", (4, 2), (255, 255, 255)).save(tmp_path / "white.png")
    Image.new("RGB", (4, 2), (0, 0, 0)).save(tmp_path / "black.png")
    command = [sys.executable, "-m", "penstock_brightness.network", "model"]
    subprocess.run(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(installed)}, check=True)
    record = (PLUGIN / "models.toml").read_text()
    (tmp_path / "models.toml").write_text(record)
    pins = penstock(tmp_path, "models", "pin", "brightness", "--catalogue", "models.toml", PYTHONPATH=str(installed))
    (tmp_path / "models.toml").write_text(record + pins.stdout)
    return tmp_path


@pytest.mark.parametrize("where", [[], ["--isolated"]])
def test_the_example_runs_from_its_wheel(installed: Path, folder: Path, where: list[str]) -> None:
    words = ["run", "brightness", "white.png", "black.png", "--catalogue", "models.toml", "--param", "outputs=map"]
    done = penstock(folder, *words, *where, PYTHONPATH=str(installed))

    assert done.returncode == 0, done.stderr
    pictures = json.loads(done.stdout)["pictures"]
    assert [(picture["mean"], picture["dark"]) for picture in pictures] == [(1.0, False), (0.0, True)]
    with Image.open(folder / "brightness-result" / "map-1.png") as grey:
        assert (grey.mode, grey.getextrema()) == ("L", (255, 255))


def test_the_examples_runner_computes_the_same_without_torch(installed: Path, folder: Path) -> None:
    shutil.copy(PLUGIN / "luminance.toml", folder)
    np.save(folder / "luminance.npy", np.float32([0.2126, 0.7152, 0.0722]))
    words = ["white.png", "black.png", "--catalogue", "luminance.toml"]
    done = penstock(folder, "run", "brightness-numpy", *words, PYTHONPATH=str(installed))

    assert done.returncode == 0, done.stderr
    assert [picture["mean"] for picture in json.loads(done.stdout)["pictures"]] == [1.0, 0.0]


def test_a_broken_runner_is_reported_for_its_models_and_the_others_serve(installed: Path, folder: Path) -> None:
    shutil.copytree(installed, folder / "site")
    points = next((folder / "site").glob("penstock_brightness-*.dist-info")) / "entry_points.txt"
    points.write_text(points.read_text().replace("penstock_brightness.runner:", "no_such_module:"))
    shutil.copy(PLUGIN / "luminance.toml", folder)
    np.save(folder / "luminance.npy", np.float32([0.2126, 0.7152, 0.0722]))
    words = ["brightness", "brightness-numpy", "--catalogue", "models.toml", "--catalogue", "luminance.toml", "--json"]
    done = penstock(folder, "models", "check", *words, PYTHONPATH=str(folder / "site"))

    assert done.returncode == 1, done.stderr
    problems = {model["model"]: model["problems"] for model in json.loads(done.stdout)}
    assert problems["brightness"] == []
    assert "the runner 'weighted-sum': no_such_module:RUNNER cannot be imported" in problems["brightness-numpy"][0]


def test_the_examples_own_tests_pass(installed: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", tmp_path, PLUGIN / "tests"]
    env = os.environ | {"PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_broken_plugins_are_reported_and_the_others_serve(installed: Path, folder: Path) -> None:
    words = ["--catalogue", "models.toml", "--catalogue", "broken.toml"]
    listed = penstock(folder, "models", "list", *words, "--json", PYTHONPATH=str(installed))

    assert listed.returncode == 0, listed.stderr
    problems = {model["name"]: model["problem"] for model in json.loads(listed.stdout)}
    assert problems["csmask"] is problems["brightness"] is None
    assert "plugin_that_raises:Processor cannot be imported: RuntimeError: no licence file" in problems["raises"]
    assert "SIGSEGV" in problems["crashes"]
    assert problems["leaves"]

    checked = penstock(folder, "models", "check", *words, PYTHONPATH=str(installed))
    assert checked.returncode == 1
    assert "no licence file" in checked.stdout
    sound = penstock(folder, "models", "check", "brightness", "--warm-up", *words, PYTHONPATH=str(installed))
    assert sound.returncode == 0, sound.stdout


@pytest.mark.slow
def test_a_service_runs_the_example_and_tells_of_the_broken_ones(installed: Path, folder: Path) -> None:
    config = f'models = ["{folder / "models.toml"}", "{folder / "broken.toml"}"]'
    with running(folder / "up", config=config, PYTHONPATH=str(installed)) as stack, stack.client() as client:
        wait_for(
            lambda: [each.name for each in client.models() if each.problem is None] == ["brightness", "csmask"],
            "not these models alone can be used",
        )
        models = {model.name: model.problem for model in client.models()}
        assert "no licence file" in (models["raises"] or "")
        with pytest.raises(PenstockAPIError, match=r"crashes cannot be used at the moment: .*SIGSEGV"):
            client.submit("crashes", {})

        job = client.wait(client.submit("brightness", files={"pictures": [folder / "white.png"]}).id)
        assert job.succeeded, job.error
        assert job.data == {"pictures": [{"mean": 1.0, "dark": False, "histogram": [0, 0, 0, 8]}]}

        page = client.submit("brightness", files={"pictures": [folder / "models.toml"]})
        failed = client.wait(page.id)
        assert failed.error is not None
        assert failed.error.code == "media_unreadable"
