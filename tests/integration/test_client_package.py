"""`pip install penstock`: the client alone, in a bare environment from the built wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_MB = 30
#: Imports that a script of the client's user makes.
PROGRAM = """
from penstock.client import AsyncClient, Client, Job, Unreachable
import penstock.webhooks
AsyncClient("http://127.0.0.1:9")
try:
    Client("http://127.0.0.1:9", patience_s=0).run("csmask", scene="scene.tif")
except Unreachable as error:
    print(error)
"""


def run(*words: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=500, check=False, cwd=cwd)


@pytest.mark.breadth
@pytest.mark.timeout(600)
def test_the_wheel_alone_is_the_client(tmp_path: Path, record_property: pytest.RecordProperty) -> None:
    built = run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path)
    assert built.returncode == 0, built.stderr
    [wheel] = tmp_path.glob("*.whl")
    venv.create(tmp_path / "bare", with_pip=False)
    python = tmp_path / "bare" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check")
    done = run(*pip, "-c", ROOT / "constraints.txt", wheel)
    if "No matching distribution" in done.stderr and not os.environ.get("CI"):
        pytest.skip("needs the package index")
    assert done.returncode == 0, done.stderr
    (tmp_path / "scene.tif").write_bytes(b"II*\0")
    said = run(python, "-c", PROGRAM, cwd=tmp_path)
    assert "no answer from http://127.0.0.1:9" in said.stdout, said.stderr
    command = run(python.with_name("penstock"), "list")
    assert (command.returncode, command.stdout) == (2, "")
    assert "penstock: the command line needs " in command.stderr
    assert "pip install '.[service]' in a clone" in command.stderr
    files = (path for path in (tmp_path / "bare" / "lib").rglob("*") if not path.is_symlink())
    size_mb = sum(path.lstat().st_size for path in files) / 1e6
    record_property("figures", f"the client alone takes {size_mb:.1f} MB")
    assert size_mb < MAX_MB
