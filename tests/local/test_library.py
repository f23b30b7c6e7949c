"""`penstock.Engine`: models in this process, by the processors and the engine of a worker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.config import Settings
from penstock.errors import Canceled, InvalidInput, MediaNotFound, MediaRefused, MediaTooLarge, UnknownModel
from penstock.jobs import Phase, Progress
from penstock.processors.geo.sample import write_sample
from tests.support import catalogues
from tests.support.hub import STORIES, needs_stories


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    path = tmp_path / "scene.tif"
    write_sample(path, size_px=64)
    return path


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[penstock.Engine]:
    with penstock.Engine(catalogue=[catalogues.toy(tmp_path)], settings=Settings(model_cache=tmp_path)) as engine:
        yield engine


def test_importing_the_package_brings_nothing_heavy() -> None:
    code = "import sys, penstock; print(sorted({'torch', 'numpy', 'rasterio', 'pydantic'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_package_has_nothing_else_lazily() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Motor'"):
        penstock.Motor  # type: ignore[attr-defined]  # noqa: B018


def test_a_result_has_data_and_files(engine: penstock.Engine, scene: Path, tmp_path: Path) -> None:
    seen: list[tuple[Phase, Progress]] = []
    result = engine.run(
        "toy", scene=scene, outputs=("classes", "stats"), out=tmp_path / "new" / "result",
        on_progress=lambda *told: seen.append(told),
    )  # fmt: skip
    assert result.data is not None
    assert result.data["pixels"] == 64 * 64
    assert {name: file.path for name, file in result.artifacts.items()} == {
        "classes.tif": tmp_path / "new/result/classes.tif",
        "classes.tif.aux.xml": tmp_path / "new/result/classes.tif.aux.xml",
        "classes.qml": tmp_path / "new/result/classes.qml",
        "stats.json": tmp_path / "new/result/stats.json"
    }  # fmt: skip
    assert json.loads(result.artifacts["stats.json"].path.read_text())["pixels"] == 64 * 64
    assert sorted(path.name for path in (tmp_path / "new/result").iterdir()) == sorted(result.artifacts)
    assert [phase for phase, _ in seen][:3] == [Phase.PREPROCESSING, Phase.LOADING, Phase.INFERRING]
    assert seen[-1] == (Phase.POSTPROCESSING, Progress(4, 4, "tiles"))


def test_files_of_a_result_without_a_folder_live_as_long_as_the_engine(scene: Path, tmp_path: Path) -> None:
    with penstock.Engine(catalogue=[catalogues.toy(tmp_path)]) as engine:
        first = engine.run("plaything", input={"scene": str(scene), "outputs": ["stats"]}).artifacts["stats.json"]
        second = engine.run("plaything", scene=scene, outputs=["stats"]).artifacts["stats.json"]
        assert first.path != second.path
        assert first.size_bytes == second.size_bytes > 0
    assert not first.path.exists()


def test_metadata_beside_the_scene_are_read_unless_the_input_says_none(engine: penstock.Engine, scene: Path) -> None:
    without = engine.run("toy", scene=scene, outputs=["stats"])
    nodata = "<PAMDataset><PAMRasterBand band='1'><NoDataValue>500</NoDataValue></PAMRasterBand></PAMDataset>"
    scene.with_name("scene.tif.aux.xml").write_text(nodata)
    assert without.data is not None
    found = engine.run("toy", scene=scene, outputs=["stats"]).data
    assert found is not None
    assert found["radiometry"]["nodata"] != without.data["radiometry"]["nodata"]
    assert 500 in np.atleast_1d(found["radiometry"]["nodata"])
    assert engine.run("toy", scene=scene, beside=[], outputs=["stats"]).data == without.data


def test_what_is_wrong_with_the_input_is_said_and_the_next_run_succeeds(
    engine: penstock.Engine, scene: Path, tmp_path: Path
) -> None:
    with pytest.raises(UnknownModel, match=r"no model 'ploy'; known models: csmask, toy \(plaything\)"):
        engine.run("ploy")
    with pytest.raises(MediaNotFound) as missing:
        engine.run("toy", scene="never.tif")
    assert (missing.value.errors[0].pointer, missing.value.errors[0].detail) == ("/input/scene", "never.tif")
    with pytest.raises(MediaRefused, match="penstock submit"):
        engine.run("toy", scene="s3://bucket/scene.tif")
    with pytest.raises(InvalidInput, match=r"does not fit model toy \(/input/outputs/0: must be 'classes'"):
        engine.run("toy", scene=scene, outputs=["everything"], out=tmp_path / "never")
    with pytest.raises(InvalidInput, match="lone surrogate"):
        engine.run("toy", scene=scene, bands=["blue", "\ud800"])
    assert not (tmp_path / "never").exists()
    assert engine.run("toy", scene=scene, outputs=["stats"]).data


def test_a_file_over_the_models_limit_is_refused(scene: Path, tmp_path: Path) -> None:
    with penstock.Engine(catalogue=[catalogues.toy(tmp_path, max_bytes=10)]) as engine, pytest.raises(MediaTooLarge):
        engine.run("toy", scene=scene)


def test_a_run_is_ended_by_its_check(engine: penstock.Engine, scene: Path) -> None:
    asked = 0

    def check() -> None:
        nonlocal asked
        asked += 1
        if asked > 2:
            raise Canceled

    with pytest.raises(Canceled):
        engine.run("toy", scene=scene, check=check)
    assert engine.run("toy", scene=scene, outputs=["stats"]).data


def test_the_dummy_goes_the_whole_way(engine: penstock.Engine) -> None:
    warmth = engine.warm_up("toy")
    assert (warmth.largest_batch, warmth.warm_up_s > 0) == (1, True)


def test_a_processor_may_work_in_a_process_of_its_own(engine: penstock.Engine, scene: Path, tmp_path: Path) -> None:
    here = engine.run("toy", scene=scene, outputs=["classes"], out=tmp_path / "here")
    with penstock.Engine(catalogue=[tmp_path / "toy.toml"], isolated=True) as isolated:
        there = isolated.run("toy", scene=scene, outputs=["classes"], out=tmp_path / "there")
        with pytest.raises(InvalidInput, match="does not fit model toy"):
            isolated.run("toy", scene=scene, outputs=["everything"])
    assert there.data == here.data
    assert (tmp_path / "here/classes.tif").read_bytes() == (tmp_path / "there/classes.tif").read_bytes()


@needs_stories
def test_text_comes_piece_by_piece_and_then_as_a_whole(tmp_path: Path) -> None:
    with penstock.Engine(catalogue=[catalogues.stories(tmp_path, STORIES)]) as engine:
        with engine.stream("stories", prompt="Once upon a time", max_new_tokens=20) as stream:
            pieces = list(stream)
        assert len(pieces) > 5
        assert "".join(pieces) == stream.result.text
        assert stream.result.text == engine.run("stories", prompt="Once upon a time", max_new_tokens=20).text

        with engine.stream("stories", prompt="Once upon a time", max_new_tokens=400) as stream:
            next(stream)
        with pytest.raises(Canceled):
            _ = stream.result
        with engine.stream("stories", prompt=7) as stream, pytest.raises(InvalidInput):
            next(stream)
