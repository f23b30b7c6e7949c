"""Penstock in an environment without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.functions.importable import importable, variables


def test_a_file_is_described_where_no_package_is_installed(tmp_path: Path) -> None:
    path = tmp_path / "bare.py"
    path.write_text(
        "import importlib.util, penstock\n@penstock.model(title=str(importlib.util.find_spec('numpy')))\n"
        "def words(text: str) -> int:\n    return len(text.split())\n"
    )
    # -S leaves out all installed packages.
    words = [sys.executable, "-S", "-m", "penstock.functions.child", "--describe", str(path)]
    env = {**os.environ, **variables(Path("/elsewhere/bin/python"))}
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60, env=env, cwd=tmp_path)
    [described] = json.loads(done.stdout.splitlines()[-1])
    assert described["title"] == "None"
    assert described["schema"]["required"] == ["text"]


def test_entry_points_and_processes_of_processes_find_it(tmp_path: Path) -> None:
    code = (
        "import multiprocessing, penstock\nfrom importlib.metadata import entry_points\n"
        "import penstock.functions.declaration as declaration\n"
        "def work(): print(penstock.__path__[0], declaration.__name__)\n"
        "if __name__ == '__main__':\n"
        "    print(len(entry_points(group='penstock.runners', name='torch')))\n"
        "    process = multiprocessing.get_context('spawn').Process(target=work)\n"
        "    process.start()\n    process.join()\n"
    )
    (tmp_path / "program.py").write_text(code)
    env = {**os.environ, **variables(Path("/elsewhere/bin/python"))}
    words = [sys.executable, "-S", str(tmp_path / "program.py")]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60, env=env, cwd=tmp_path)
    assert done.stdout.splitlines() == ["1", f"{importable()}/penstock penstock.functions.declaration"]


def test_another_interpreter_sees_no_path_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    assert variables(Path("/elsewhere/bin/python"))["PYTHONPATH"] == str(importable())
    assert variables(Path(sys.executable))["PYTHONPATH"] == f"{importable()}:/mine"
    assert {path.name for path in importable().iterdir()} >= {"penstock"}
