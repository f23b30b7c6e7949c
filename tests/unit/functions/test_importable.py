"""Penstock in an environment without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.functions.importable import fitted, importable

ELSEWHERE = Path("/elsewhere/bin/python")


def test_a_file_is_described_where_no_package_is_installed(tmp_path: Path) -> None:
    path = tmp_path / "bare.py"
    path.write_text(
        "import importlib.util, penstock\n@penstock.model(title=str(importlib.util.find_spec('numpy')))\n"
        "def words(text: str) -> int:\n    return len(text.split())\n"
    )
    # -S leaves out all installed packages.
    words = [sys.executable, "-S", "-m", "penstock.functions.child", "--describe", str(path)]
    env = fitted(os.environ, ELSEWHERE)
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
    env = fitted(os.environ, ELSEWHERE)
    words = [sys.executable, "-S", str(tmp_path / "program.py")]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60, env=env, cwd=tmp_path)
    assert done.stdout.splitlines() == ["1", f"{importable()}/penstock penstock.functions.declaration"]


def test_another_interpreter_sees_no_path_of_this_one() -> None:
    own = {"PYTHONPATH": "/mine", "VIRTUAL_ENV": "/mine", "LANG": "C"}
    assert fitted(own, ELSEWHERE) == {"PYTHONPATH": str(importable()), "LANG": "C"}
    assert fitted(own, Path(sys.executable)) == own
    assert {path.name for path in importable().iterdir()} >= {"penstock"}


def test_all_processes_of_a_user_have_one_folder_and_make_it_anew(tmp_path: Path) -> None:
    def asked() -> Path:
        code = "import os, penstock.functions.importable as it; print(it.importable(), flush=True); os._exit(0)"
        words, env = [sys.executable, "-c", code], {**os.environ, "TMPDIR": str(tmp_path)}
        done = subprocess.run(words, capture_output=True, text=True, check=True, env=env, timeout=60)
        return Path(done.stdout.strip())

    first = asked()
    assert asked() == first
    assert list(tmp_path.iterdir()) == [first]
    (first / "penstock").unlink()  # as programs do that tidy up
    assert asked() == first
    assert (first / "penstock" / "functions").is_dir()


def test_a_folder_of_another_user_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("os.getuid", lambda: os.geteuid() + 1)
    taken = importable()  # not of the user that this process seems to have
    (taken / "penstock").unlink()
    assert (importable() / "penstock" / "functions").is_dir()
    assert list(taken.glob("penstock")) == []
