"""Models whose library the worker lacks: records that name an environment, with a double of vLLM in it alone."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.catalogue.environments import Environments, digest_of
from penstock.catalogue.records import read_catalogue
from penstock.catalogue.script import read_script
from penstock.cli.environments import findings
from penstock.config import load_settings
from penstock.errors import ModelUnavailable
from penstock.intake.local_media import LocalMedia
from penstock.models import Model
from penstock.workers.engine.checking import shared
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.function.process import interpreter_of
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.sources import localise
from penstock.workers.io.forks import ForkOptions
from penstock.workers.io.pool import IOPool, interpreter_for
from penstock.workers.processing import Processing, Work
from penstock.workers.provenance import facts_of, record_sha256
from penstock.workers.software import installed_software
from tests.support.environments import an_environment
from tests.support.vllm_plugins import DOUBLE, FILES, a_directory, a_model
from tests.support.wheels import write_uv_config, write_wheel


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return an_environment(tmp_path_factory.mktemp("environment") / "vllm", DOUBLE)


@pytest.fixture
def model(tmp_path: Path, environment: Path) -> Model:
    shapes = {"pixel_values": {"shape": [1, 2, 2]}}
    source = a_directory(tmp_path / "model", pretrained_cfg={"input": {"target": "pixel_values", "data": shapes}})
    return localise(a_model(source, environment=str(environment)), cache=tmp_path / "cache")


@pytest.fixture(scope="module")
def pool() -> Iterator[Processing]:
    with closing(IOPool(2, ForkOptions(2048 * 2**20))) as pool:
        yield pool


@pytest.fixture
def engine() -> Iterator[BatchingEngine]:
    with closing(BatchingEngine(Runners.installed())) as engine:
        yield engine


def run(pool: Processing, engine: BatchingEngine, model: Model, *values: Any) -> Any:
    folder = Path(model.source).parent
    (folder / "in.json").write_text(json.dumps(values))
    (folder / "artifacts").mkdir(exist_ok=True)
    work = Work(
        model, {**FILES, "times": 2}, {FILES["file"]: LocalMedia(folder / "in.json")}, folder / "artifacts"
    )  # fmt: skip
    with pool.open(work, check=lambda: None, say=lambda _: None) as session:
        return session.finish(
            engine.run(model, session.prepared.prompts, check=lambda: None, cost=session.prepared.cost)
        ).result.data


def test_a_plugin_and_its_engine_run_in_the_environment(
    pool: Processing, engine: BatchingEngine, model: Model, environment: Path
) -> None:
    assert importlib.util.find_spec("vllm") is None
    assert run(pool, engine, model, 1, 2, 4)["data"]["total"] == 42.0
    commands = [each.info["cmdline"] for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"]]
    python = str(environment / "bin" / "python")
    modules = {word for words in commands if words[0] == python for word in words}
    assert modules >= {"penstock.workers.engine.hosted_child", "penstock.workers.io.server"}
    plain = model.model_copy(update={"environment": None})
    assert "vLLM is not installed" in (pool.entry(plain).problem or "")
    assert pool.entry(model).problem is None


def test_one_process_of_the_environment_checks_all_of_its_models(model: Model, environment: Path) -> None:
    Runners.installed().check(model)
    python = str(environment / "bin" / "python")

    def checking() -> list[int]:
        found = psutil.process_iter(["cmdline"])
        return [each.pid for each in found if (each.info["cmdline"] or [])[:1] == [python]]

    [first] = [pid for pid in checking() if "penstock.workers.engine.checking_child" in psutil.Process(pid).cmdline()]
    wrong = model.model_copy(update={"options": {**model.options, "task": "sing"}})
    with pytest.raises(ModelUnavailable, match=r"`options.task` is one of embed, classify"):
        Runners.installed().check(wrong)
    assert first in checking()
    shared(environment / "bin" / "python").end()


def test_processors_run_in_the_worker_s_environment_unless_they_need_the_library(model: Model) -> None:
    assert interpreter_for(model) == Path(str(model.environment))
    assert interpreter_for(model.model_copy(update={"processor": "raster-segmentation"})) is None
    assert interpreter_for(model.model_copy(update={"processor": "only-there"})) == Path(str(model.environment))
    assert interpreter_for(model.model_copy(update={"environment": None})) is None


def test_a_runner_that_needs_the_worker_s_process_refuses(model: Model) -> None:
    inside = model.model_copy(update={"runner": "lightgbm", "processor": "tables"})
    with pytest.raises(ModelUnavailable, match="inside the worker: leave out `environment`"):
        Runners.installed().check(inside)


def test_an_environment_without_what_penstock_needs_says_what_to_install(tmp_path: Path, model: Model) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    bare = model.model_copy(update={"environment": str(tmp_path / "bare")})
    with pytest.raises(ModelUnavailable, match=r"bare/bin/python -m pip install 'jsonschema.*'structlog"):
        localise(bare, cache=tmp_path)
    gone = model.model_copy(update={"environment": str(tmp_path / "gone")})
    with pytest.raises(ModelUnavailable, match=r"there is no environment with `bin/python` at .*gone"):
        localise(gone, cache=tmp_path)


def test_a_record_s_packages_are_built_with_those_of_penstock(tmp_path: Path, model: Model) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    write_wheel(packages, "tool", "1.0")
    for name in ("jsonschema", "numpy", "pillow", "psutil", "pydantic", "pydantic_settings", "pyseccomp"):
        write_wheel(packages, name, "99.0")
    for name in ("safetensors", "structlog"):
        write_wheel(packages, name, "99.0")
    environments = Environments(tmp_path / "environments", write_uv_config(tmp_path, packages))
    asked = model.model_copy(update={"environment": None, "dependencies": ("tool==1.0",)})
    assert asked.is_unbuilt
    with pytest.raises(ModelUnavailable, match="is not built yet: `penstock models build`"):
        localise(asked, cache=tmp_path, environments=environments, fetch=False)
    built = localise(asked, cache=tmp_path, environments=environments)
    python = Path(built.environment or "")
    assert subprocess.run([python, "-c", "import tool, structlog"], check=True, timeout=60).returncode == 0
    assert facts_of(built)["model"]["packages"] == python.parents[1].name == digest_of(python)
    assert installed_software(python)["numpy"] == "99.0"
    assert record_sha256(built) == record_sha256(asked)


INSTALLED = ("Pytest_Timeout>=1", f"numpy=={metadata.version('numpy')}", "tool==1.0; python_version < '3'")


def test_packages_that_the_worker_has_are_not_built(tmp_path: Path, model: Model) -> None:
    asked = model.model_copy(update={"environment": None, "dependencies": INSTALLED})
    environments = Environments(tmp_path / "environments", tmp_path / "no-uv.toml")
    found = localise(asked, cache=tmp_path, environments=environments)
    assert (found.environment, found.is_unbuilt) == (None, False)
    assert interpreter_of(found) == Path(sys.executable)
    assert not (tmp_path / "environments").exists()


@pytest.mark.parametrize("lacking", ["numpy<2", "tool", "numpy[x]", "numpy @ file:///numpy.whl", "./a folder"])
def test_one_package_that_the_worker_lacks_makes_an_environment(tmp_path: Path, model: Model, lacking: str) -> None:
    asked = model.model_copy(update={"environment": None, "dependencies": (*INSTALLED, lacking)})
    with pytest.raises(ModelUnavailable, match="is not built yet"):
        localise(asked, cache=tmp_path, environments=Environments(tmp_path / "environments"), fetch=False)


def test_a_catalogue_names_an_environment_from_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text(
        '[models.m]\ntitle = "M"\nrunner = "vllm"\nprocessor = "vllm-plugin"\nsource = "m"\nrevision = "1"\n'
        'environment = "../vllm"\n'
    )
    assert read_catalogue(tmp_path / "models.toml")["m"].environment == str(tmp_path / "../vllm")


def test_doctor_says_which_environments_are_built_missing_broken_or_unused(
    tmp_path: Path, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    for version in ("1.0", "2.0"):
        write_wheel(packages, "tool", version)
    record = (
        '[models.{0}]\ntitle = "T"\nrunner = "vllm"\nprocessor = "vllm-plugin"\nsource = "m"\nrevision = "1"\n{1}\n'
    )
    (tmp_path / "models.toml").write_text(
        record.format("ready", f'environment = "{environment}"')
        + record.format("unbuilt", 'dependencies = ["tool==3.0"]')
        + record.format("gone", 'environment = "nowhere"')
        + record.format("here", 'dependencies = ["numpy"]')
    )
    text = (
        "# /// script\n# dependencies = ['tool=={0}']\n# ///\n"
        "import penstock\n@penstock.model\ndef {1}() -> int: return 1\n"
    )
    for version, name in (("1.0", "used"), ("2.0", "unused")):
        (tmp_path / f"{name}.py").write_text(text.format(version, name))
    monkeypatch.setenv("PENSTOCK_MODEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PENSTOCK_UV_CONFIG", str(write_uv_config(tmp_path, packages)))
    settings = load_settings(models=[tmp_path / "models.toml", tmp_path / "used.py"])
    environments = Environments.of(settings)
    used, unused = (environments.build(read_script(tmp_path / f"{name}.py")).parents[1] for name in ("used", "unused"))
    found = {each.name: (each.ok, each.detail) for each in findings(settings)}
    assert found["environment of ready"] == (True, str(environment))
    assert found["environment of here"] == (True, sys.prefix)
    assert found["environment of used.py"] == (True, str(used))
    assert found["environment of unbuilt"][0] is False
    assert "is not built yet" in found["environment of unbuilt"][1]
    assert "there is no environment" in found["environment of gone"][1]
    assert found[f"environment {unused.name}"][1].startswith("no model uses it")
    (unused / "bin" / "python").unlink()
    assert (False, "its interpreter is gone") in [(each.ok, each.detail) for each in findings(settings)]
