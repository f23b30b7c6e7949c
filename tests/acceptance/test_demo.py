"""The demo as a user runs it on a scene of their own that is none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from penstock.processors.geo.sample import write_sample
from tests.support.polling import wait_for

pytestmark = pytest.mark.slow
#: Python runs a module of this name at its start.
WITHOUT_TORCH = """
import sys
from importlib.machinery import PathFinder

class WithoutTorch(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name == "torch" else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutTorch
"""


@pytest.mark.breadth
def test_a_failed_demo_leaves_the_job_with_its_error(tmp_path: Path) -> None:
    (tmp_path / "text.tif").write_text("no scene")
    command = [sys.executable, "-m", "penstock.cli", "demo", "--scene", "text.tif"]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)

    assert done.returncode == 1
    assert [path.name for path in (tmp_path / "demo-output").iterdir()] == ["job.json"]
    job = json.loads((tmp_path / "demo-output" / "job.json").read_text())
    assert (job["status"], job["error"]["code"]) == ("failed", "media_unreadable")
    assert job["error"]["detail"] in done.stderr


@pytest.mark.breadth
def test_without_torch_onnx_runtime_computes_the_demo(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_TORCH)
    write_sample(tmp_path / "scene.tif", size_px=256)
    command = [sys.executable, "-m", "penstock.cli", "demo", "--scene", "scene.tif"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "by ONNX Runtime" in done.stdout
    assert (tmp_path / "demo-output" / "classes.tif").stat().st_size > 0


def test_sigterm_to_the_demo_ends_all_that_it_started(tmp_path: Path) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    command, env = [sys.executable, "-m", "penstock.cli", "demo"], {**os.environ, "TMPDIR": str(scratch)}
    demo = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True)
    try:
        assert demo.stderr is not None
        next(line for line in demo.stderr if line.startswith("valkey"))
        started = psutil.Process(demo.pid).children(recursive=True)
        assert any("valkey" in each.name() for each in started)

        demo.send_signal(signal.SIGTERM)
        demo.stderr.read()  # until `penstock up` ended, too

        assert demo.wait() == 128 + signal.SIGTERM
        wait_for(lambda: not any(map(_runs, started)), "a process of the demo still runs")
        assert list(scratch.iterdir()) == []
    finally:
        demo.kill()
        demo.communicate()


def _runs(process: psutil.Process) -> bool:
    """Return True for a process that has not ended, whether or not its parent knows."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
