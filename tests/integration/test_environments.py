"""Environments of models: conflicting packages in one worker, built once, by uv, without credentials."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import penstock
from penstock.catalogue.environments import Environments
from penstock.catalogue.functions import function_records
from penstock.catalogue.script import read_script
from penstock.errors import ConfigError, ModelUnavailable
from tests.support.polling import wait_for
from tests.support.stack import running
from tests.support.wheels import write_source, write_uv_config, write_wheel

pytest.importorskip("uv")

FUNCTION = """
import penstock
import {package}


@penstock.model
def {name}(text: str) -> dict[str, str]:
    return {{"version": {package}.VERSION, "numpy": str(_has("numpy"))}}


def _has(name):
    import importlib.util
    return importlib.util.find_spec(name) is not None
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    folder = tmp_path / "packages"
    folder.mkdir()
    for version in ("1.0", "2.0"):
        write_wheel(folder, "tool", version)
    return folder


@pytest.fixture
def environments(tmp_path: Path, packages: Path) -> Environments:
    return Environments(tmp_path / "cache" / "environments", write_uv_config(tmp_path, packages))


def write_model(folder: Path, name: str, dependencies: str, package: str = "tool", more: str = "") -> Path:
    path = folder / f"{name}.py"
    path.write_text(
        f"# /// script\n# dependencies = [{dependencies}]\n{more}# ///\n" + FUNCTION.format(name=name, package=package)
    )
    return path


def test_one_worker_serves_models_whose_packages_conflict(tmp_path: Path, packages: Path) -> None:
    old, new = write_model(tmp_path, "old", "'tool==1.0'"), write_model(tmp_path, "new", "'tool==2.0'")
    broken = write_model(tmp_path, "broken", "'tool==3.0'")
    config = f'models = ["{old}", "{new}", "{broken}"]\nuv_config = "{write_uv_config(tmp_path, packages)}"\n'
    with (
        running(tmp_path / "data", config=config, model="new", PENSTOCK_MODEL_CACHE=str(tmp_path / "cache")) as stack,
        stack.client() as client,
    ):
        wait_for(
            lambda: "tool" in (client.model("broken").problem or ""), "the failed build is not reported", timeout_s=60
        )
        assert "tool==3.0" in (client.model("broken").problem or "")
        assert client.run("old", text="a").data == {"version": "1.0", "numpy": "False"}
        assert client.run("new", text="a").data == {"version": "2.0", "numpy": "False"}


def test_a_file_runs_here_in_its_environment(
    tmp_path: Path, environments: Environments, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_model(tmp_path, "old", "'tool==1.0'")
    monkeypatch.setenv("PENSTOCK_MODEL_CACHE", str(environments.folder.parent))
    monkeypatch.setenv("PENSTOCK_UV_CONFIG", str(environments.uv_config))
    words = [sys.executable, "-m", "penstock.cli", "run", str(path), "text"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    assert '"version": "1.0"' in done.stdout
    assert done.stdout.startswith("{")  # and no line of a log
    assert "building the environment of old.py: tool==1.0" in done.stderr
    environments.uv_config.unlink()  # type: ignore[union-attr]  # and no index from now on
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    assert '"version": "1.0"' in done.stdout
    assert "building" not in done.stderr


def test_records_of_a_file_that_is_not_built_have_names_only(tmp_path: Path, environments: Environments) -> None:
    path = write_model(tmp_path, "old", "'tool==1.0'")
    [record] = function_records(path, environments)
    assert record.name == "old"
    assert record.is_unbuilt
    [whole] = function_records(path, environments, build=True)
    assert whole.options["signature"]["schema"]["required"] == ["text"]
    assert (whole.name, whole.revision) == (record.name, record.revision)


def test_models_with_one_lock_share_an_environment_that_is_built_once(
    tmp_path: Path, packages: Path, environments: Environments
) -> None:
    log = tmp_path / "builds"
    write_source(packages, "seen", "1.0", log)
    files = [write_model(tmp_path, f"m{at}", "'seen'", "seen") for at in range(4)]
    with ThreadPoolExecutor(4) as threads:
        found = set(threads.map(lambda file: environments.build(read_script(file)), files))
    assert len(found) == 1
    assert log.read_text().count("built") == 1
    assert [one.packages for one in environments.listed()] == [["seen==1.0"]]


def test_a_build_sees_no_credentials(
    tmp_path: Path, packages: Path, environments: Environments, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_source(packages, "seen", "1.0", tmp_path / "builds")
    for name in ("PENSTOCK_API_KEY", "AWS_SECRET_ACCESS_KEY", "UV_INDEX_PASSWORD", "HF_TOKEN"):
        monkeypatch.setenv(name, "not for builds")
    python = environments.build(read_script(write_model(tmp_path, "m", "'seen'", "seen")))
    seen = subprocess.run(
        [python, "-c", "import seen; print(seen.SEEN)"], capture_output=True, text=True, check=True
    ).stdout
    assert "'PATH'" in seen
    assert "not for builds" not in seen
    assert str(Path.home()) + "'" not in seen


def test_a_package_that_is_not_the_locked_one_is_refused(
    tmp_path: Path, packages: Path, environments: Environments
) -> None:
    path = write_model(tmp_path, "m", "'tool==1.0'")
    environments.build(read_script(path))
    [locks] = (environments.folder / "locks").glob("*.json")
    other = Environments(tmp_path / "other", environments.uv_config)
    (other.folder / "locks").mkdir(parents=True)
    (other.folder / "locks" / locks.name).write_text(locks.read_text())
    write_wheel(packages, "tool", "1.0", "CHANGED = True\n")
    with pytest.raises(ModelUnavailable, match="Hash mismatch"):
        other.build(read_script(path))


def test_a_failed_build_says_uv_s_last_lines(tmp_path: Path, environments: Environments) -> None:
    with pytest.raises(ModelUnavailable, match=r"tool.*3\.0"):
        environments.build(read_script(write_model(tmp_path, "m", "'tool==3.0'")))
    assert environments.listed() == []


def test_environments_beyond_the_bound_go_unless_a_process_that_lives_has_found_them(
    tmp_path: Path, environments: Environments
) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom penstock.catalogue.environments import Environments\n"
        "from penstock.catalogue.script import read_script\nfolder, config, file = map(Path, sys.argv[1:])\n"
        "sys.stderr.write(str(Environments(folder, config).build(read_script(file))) + '\\n')\nsys.stdin.read()"
    )
    old, new = write_model(tmp_path, "old", "'tool==1.0'"), write_model(tmp_path, "new", "'tool==2.0'")
    words = [sys.executable, "-c", code, str(environments.folder), str(environments.uv_config), str(old)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as other:
        assert other.stderr is not None
        first = Path(other.stderr.readline().strip())
        assert first.exists()
        small = Environments(environments.folder, environments.uv_config, most_bytes=0)
        second = small.build(read_script(new))
        assert first.exists()
        other.communicate()
    assert small.evict() == [first.parents[1]]
    assert not first.exists()
    assert [one.folder for one in environments.listed()] == [second.parents[1]]


def test_the_lock_of_uv_beside_a_file_chooses_the_versions(tmp_path: Path, environments: Environments) -> None:
    path = write_model(tmp_path, "pinned", "'tool==1.0'", more="# requires-python = '>=3.11'\n")
    lock = [
        sys.executable,
        "-m",
        "uv",
        "lock",
        "-q",
        "--script",
        str(path),
        "--config-file",
        str(environments.uv_config),
    ]
    subprocess.run(lock, check=True, timeout=60)
    path.write_text(path.read_text().replace("tool==1.0", "tool"))  # the newest is 2.0
    python = environments.build(read_script(path))
    said = subprocess.run(
        [python, "-c", "import tool; print(tool.VERSION)"], capture_output=True, text=True, check=True
    )
    assert said.stdout == "1.0\n"


def test_a_file_may_name_an_environment_that_is_ready(tmp_path: Path, environments: Environments) -> None:
    ready = environments.build(read_script(write_model(tmp_path, "old", "'tool==1.0'"))).parents[1]
    path = write_model(tmp_path, "new", "", more=f"# [tool.penstock]\n# environment = '{ready}'\n")
    assert function_records(path, Environments(tmp_path / "other"))[0].environment == str(ready / "bin" / "python")
    path = write_model(tmp_path, "gone", "", more="# [tool.penstock]\n# environment = 'nowhere'\n")
    with pytest.raises(ConfigError, match=r"there is no environment with `bin/python` at .*nowhere"):
        function_records(path, environments)


def test_a_type_whose_package_the_environment_lacks_is_refused(tmp_path: Path, environments: Environments) -> None:
    path = write_model(tmp_path, "m", "'tool'")
    path.write_text(path.read_text().replace("text: str", "text: penstock.Image"))
    with pytest.raises(ConfigError, match=r"`text` needs numpy and pillow, which this environment lacks"):
        function_records(path, environments, build=True)


@pytest.mark.breadth
def test_real_packages_of_the_index_conflict_and_serve(tmp_path: Path) -> None:
    environments = Environments(tmp_path / "environments")
    found = {}
    for name, version in (("old", "4.9.0"), ("new", "4.11.0")):
        path = tmp_path / f"{name}.py"
        path.write_text(
            f"# /// script\n# dependencies = ['humanize=={version}']\n# ///\nimport humanize, penstock\n"
            f"@penstock.model\ndef {name}(number: int) -> list[str]:\n"
            "    return [humanize.intcomma(number), humanize.__version__]\n"
        )
        try:
            function_records(path, environments, build=True)
        except ModelUnavailable as error:
            pytest.skip(f"no index of packages can be reached: {error.detail}")
    os.environ["PENSTOCK_MODEL_CACHE"] = str(tmp_path)
    try:
        with penstock.Engine(catalogue=[tmp_path / "old.py", tmp_path / "new.py"]) as engine:
            found = {name: engine.run(name, number=1000).data for name in ("old", "new")}
    finally:
        del os.environ["PENSTOCK_MODEL_CACHE"]
    assert found == {"old": {"answer": ["1,000", "4.9.0"]}, "new": {"answer": ["1,000", "4.11.0"]}}
