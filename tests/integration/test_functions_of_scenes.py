"""Functions that take tiles of scenes: maps, objects and vectors, as the same models inside the worker make them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import tomlkit
import torch
from torch import nn

import penstock
from penstock.catalogue.functions import function_records
from penstock.errors import ConfigError, InvalidInput, ModelUnavailable, ProcessorFailed
from penstock.models import Model
from penstock.processors.base import Prompt
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.sample import write_sample
from penstock.workers.engine.base import Done
from penstock.workers.engine.function.runner import FunctionRunner, start_of
from tests.support.geo.scenes import read, write_scene
from tests.support.polling import wait_for

FILE = Path(__file__).parents[1] / "support" / "functions" / "scenes.py"
OUTPUTS = ["classes", "probability", "probability_float32", "confidence", "polygons", "preview", "stats"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the functions, the weights of one, and a scene."""
    folder = tmp_path_factory.mktemp("scenes")
    shutil.copy(FILE, folder / "scenes.py")
    torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1)).eval()
    sides = {2: torch.export.Dim("H"), 3: torch.export.Dim("W")}
    program = torch.export.export(net, (torch.zeros(1, 3, 64, 96),), dynamic_shapes=(sides,))
    torch.export.save(program, folder / "program.pt2")
    write_sample(folder / "scene.tif", size_px=200)
    return folder


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[penstock.Engine]:
    with penstock.Engine(catalogue=[folder / "scenes.py"]) as engine:
        yield engine


def built_in(function: Model, folder: Path) -> Path:
    """Write the record of the same network for the runner `torch`; return its catalogue."""
    (folder / "penstock.toml").write_text(
        'multiples = { H = 1, W = 1 }\n[inputs.pixels]\ndtype = "float32"\nshape = ["bands=3", "H", "W"]\n'
        '[outputs.probability]\nreduce = "softmax"\n'
    )
    digest = sha256((folder / "program.pt2").read_bytes()).hexdigest()
    options = {name: value for name, value in function.options.items() if name not in ("signature", "python")}
    record = {
        "title": function.title, "runner": "torch", "processor": function.processor, "source": str(folder),
        "device": "cpu", "revision": function.revision, "files": {"program.pt2": digest}, "options": options,
    }  # fmt: skip
    path = folder / "built_in.toml"
    path.write_text(tomlkit.dumps({"models": {function.name: record}}))
    return path


def test_the_maps_of_a_network_have_the_bytes_of_the_built_in_runner(engine: penstock.Engine, folder: Path) -> None:
    record, entry = engine.installation.servable("net")
    assert (record.runner, entry.processor, entry.title) == (
        "function", "raster-segmentation", "Map fields by a network",
    )  # fmt: skip
    asked = {"scene": folder / "scene.tif", "outputs": OUTPUTS}
    ours = engine.run("net", **asked)
    with penstock.Engine(catalogue=[built_in(record, folder)]) as other:
        theirs = other.run("net", **asked)
        assert set(ours.artifacts) == set(theirs.artifacts)
        for name, file in ours.artifacts.items():
            if name != "stats.json":  # it has the time
                assert file.path.read_bytes() == theirs.artifacts[name].path.read_bytes(), name
    assert {"classes.tif", "probability.tif", "probability_float32.tif", "polygons.fgb"} < set(ours.artifacts)
    assert len(np.unique(read(ours.artifacts["classes.tif"].path))) == 4
    assert ours.data is not None
    assert theirs.data is not None
    assert ours.data["classes"] == theirs.data["classes"]


def test_a_rule_maps_class_ids_or_booleans(engine: penstock.Engine, folder: Path) -> None:
    _, green, _, nir, *_ = scene = read(folder / "scene.tif")
    wanted = np.where((scene == 0).all(axis=0), 255, green > nir)
    dated = {"datetime": "2020-06-15T10:00:00Z", "outputs": [*OUTPUTS, "item"]}
    result = engine.run("rule", scene=folder / "scene.tif", **dated)
    np.testing.assert_array_equal(read(result.artifacts["classes.tif"].path)[0], wanted)
    assert set(np.unique(read(result.artifacts["probability.tif"].path))) == {0, 254, 255}
    described = json.loads(result.artifacts["model.json"].path.read_text())["properties"]
    assert (described["mlm:name"], described["mlm:framework"]) == ("rule", "Python")
    with rasterio.open(folder / "scene.tif") as file:
        (left, top), (right, bottom) = file.transform @ (70, 10), file.transform @ (130, 90)
        area = {"bbox": [left, bottom, right, top], "crs": str(file.crs)}
    part = engine.run("rule", scene=folder / "scene.tif", area=area)
    np.testing.assert_array_equal(read(part.artifacts["classes.tif"].path)[0], wanted[10:90, 70:130])


def test_a_record_names_a_function_of_scenes(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text(
        f'[models.lakes]\nfunction = "{folder / "scenes.py"}:rule"\nsource = "."\nrevision = "1"\n'
        "limits = { max_pixels = 50_000 }\n"
    )
    with penstock.Engine(catalogue=[tmp_path / "models.toml"], isolated=True) as engine:
        model, entry = engine.installation.servable("lakes")
        assert (model.runner, entry.processor) == ("function", "raster-segmentation")
        data = engine.run("lakes", scene=folder / "scene.tif").data
    assert data is not None
    assert [one["name"] for one in data["classes"]] == ["land", "water"]


def test_quantities_vectors_and_objects_of_tiles_become_those_of_the_scene(tmp_path: Path) -> None:
    numbers = np.random.default_rng(3).integers(1, 100, (2, 128, 128), np.uint16)
    numbers[1, 40, 50] = 1000
    scene = write_scene(tmp_path / "scene.tif", numbers, descriptions=("green", "nir"))
    with penstock.Engine(catalogue=[FILE]) as engine:
        values = read(engine.run("together", scene=scene).artifacts["values.tif"].path)
        np.testing.assert_array_equal(values[1], numbers[0])
        assert {1, 2, 3, 4} >= set(np.unique(values[0]))
        vectors = read(engine.run("means", scene=scene).artifacts["embeddings.tif"].path)
        tiles = numbers.reshape(2, 2, 64, 2, 64).astype(np.float32)
        np.testing.assert_allclose(vectors, tiles.mean(axis=(2, 4)), rtol=1e-5)
        objects = json.loads(engine.run("brightest", scene=scene).artifacts["objects.geojson"].path.read_text())
        labels = {one["properties"]["label"] for one in objects["features"]}
        boxes = [one["properties"]["pixels"] for one in objects["features"]]
        assert labels == {"buoy"}
        assert [48, 38, 52, 42] in boxes


def test_tiles_of_several_jobs_share_a_call(folder: Path) -> None:
    model = next(record for record in function_records(folder / "scenes.py") if record.name == "together")
    runner = FunctionRunner(model, start_of(model))
    try:
        prompts = [Prompt({"pixels": np.full((2, 64, 64), at, np.float32)}) for at in range(3)]
        other = Prompt({"pixels": np.zeros((2, 64, 32), np.float32)})
        assert len({runner.bucket(prompt) for prompt in prompts}) == 1
        assert runner.bucket(other) != runner.bucket(prompts[0])
        states = [runner.admit(prompt) for prompt in prompts]
        runner.step(states)
        wait_for(lambda: all(runner.awake(state) for state in states), "there is no answer")
        for at, done in enumerate(runner.step(states)):
            assert isinstance(done, Done)
            values = done.output.data["values"]
            assert isinstance(values, np.ndarray)
            assert (values.dtype, values.shape) == (np.float32, (2, 64, 64))
            assert values[:, 0, 0].tolist() == [3, at]
        with pytest.raises(InvalidInput, match="the function takes 2 bands"):
            runner.admit(Prompt({"pixels": np.zeros((3, 8, 8), np.float32)}))
    finally:
        runner.close()


@pytest.mark.parametrize(
    ("number", "said", "logged"),
    [
        (1, r"a tile of 2 x 64 x 64 cannot be used: classes are integers \(64, 64\), or .* not uint8 \(63, 64\)", ""),
        (2, "class ids are 0 to 1, and the answer has 2 to 2", ""),
        (3, "the probabilities of a pixel have the sum 1, and the answer has 6 to 6: apply softmax", ""),
        (4, "its function raised ZeroDivisionError", "no number"),
    ],
)  # fmt: skip
def test_a_wrong_answer_and_an_error_name_their_place(
    number: int, said: str, logged: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    scene = write_scene(
        tmp_path / "scene.tif", np.full((2, 64, 64), number, np.uint8), descriptions=("green", "nir"), nodata=0
    )
    with penstock.Engine(catalogue=[FILE]) as engine, pytest.raises(ProcessorFailed, match=said):
        engine.run("wrong", scene=scene)
    printed = re.sub(r"\x1b\[[0-9;]*m", "", "".join(capfd.readouterr()))
    assert re.search(rf"{logged}.* place=scenes\.py:\d+", printed)


def test_options_that_do_not_fit_name_the_line(tmp_path: Path) -> None:
    begin = "from typing import Annotated\nimport numpy as np\nimport penstock\nfrom penstock import Classes, Scene\n"
    answer = 'Annotated[np.ndarray, Classes(["a", "b"])]'
    (tmp_path / "uneven.py").write_text(
        f'{begin}T = Annotated[np.ndarray, Scene(["nir"], halo_px=3, stride_px=2)]\n'
        f"@penstock.model\ndef f(tile: T) -> {answer}:\n    return tile\n"
    )
    wanted = r"uneven\.py:6: model 'f': wrong options: .*halo_px and tile_px must be multiples of stride_px"
    with penstock.Engine(catalogue=[tmp_path / "uneven.py"]) as engine, pytest.raises(ModelUnavailable, match=wanted):
        engine.installation.servable("f")
    (tmp_path / "bad.py").write_text(f'{begin}T = Annotated[np.ndarray, Scene("nir", halo_px=3)]\n')
    with pytest.raises(ConfigError, match=r"name the bands in a list: .* \(bad\.py:5\)"):
        function_records(tmp_path / "bad.py")
