"""`penstock sample-model`: each kind is written, said to be random, and run offline."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from penstock import Engine
from penstock.cli.demo import write_scene
from penstock.errors import ConfigError
from penstock.local.sample_models import KINDS, write_sample
from tests.support.command_line import Shell


@pytest.mark.breadth
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_written_and_runs_its_dummy_request(kind: str, tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text(record := write_sample(kind, tmp_path / "tiny"))
    assert "random" in tomllib.loads(record)["models"]["tiny"]["title"]
    assert sum(path.stat().st_size for path in (tmp_path / "tiny").rglob("*")) < 5_000_000
    with Engine(catalogue=[tmp_path / "models.toml"]) as engine:
        engine.warm_up("tiny")


@pytest.mark.breadth
@pytest.mark.timeout(300)
def test_a_random_raster_model_maps_the_sample_scene(tmp_path: Path) -> None:
    write_scene(tmp_path / "scene.tif", size_px=128)
    (tmp_path / "models.toml").write_text(write_sample("raster-segmentation", tmp_path / "tiny"))
    with Engine(catalogue=[tmp_path / "models.toml"]) as engine:
        engine.run("tiny", scene=str(tmp_path / "scene.tif"), out=tmp_path / "out")
    assert (tmp_path / "out" / "classes.tif").is_file()


@pytest.mark.parametrize("name", ["My Model", "a b", 'a"b', "Grüße"])
def test_a_folder_whose_name_no_model_may_have_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a model"):
        write_sample("tabular", tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_name_with_a_point_is_one_table(tmp_path: Path) -> None:
    assert list(tomllib.loads(write_sample("tabular", tmp_path / "a.b"))["models"]) == ["a.b"]


def test_a_library_that_is_missing_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ModuleNotFoundError):
        write_sample("tabular", tmp_path / "tiny")
    assert list(tmp_path.iterdir()) == []


async def test_the_command_lists_kinds_and_refuses_others(tmp_path: Path) -> None:
    penstock = Shell({}, folder=tmp_path)
    listed = await penstock("sample-model", "list")
    assert [line.split()[0] for line in listed.out.splitlines()] == list(KINDS)
    wrong = await penstock("sample-model", "text-generatio")
    assert (wrong.code, "did you mean 'text-generation'?" in wrong.err) == (2, True)
    (tmp_path / "there").mkdir()
    taken = await penstock("sample-model", "text-generation", "--out", "there")
    assert (taken.code, "there exists" in taken.err) == (2, True)
