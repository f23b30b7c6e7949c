"""The Dockerfile without building it: hadolint accepts it, and its default extras are those of the project."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCKER = Path(__file__).parents[2] / "infra" / "docker"
ROOT = DOCKER.parents[1]


def requirements(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(DOCKER / "requirements.py"), *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_hadolint_accepts_the_dockerfile() -> None:
    linter = Path(sys.executable).with_name("hadolint")
    ended = subprocess.run([linter, str(DOCKER / "Dockerfile")], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "")


def test_the_default_extras_bring_torch_and_leave_the_dependencies_of_bare_models_out() -> None:
    (extras,) = re.findall(r"^ARG EXTRAS=(\S+)$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    lines = requirements(extras).stdout.splitlines()
    assert any(line.startswith("torch>=") for line in lines)
    assert any(line.startswith("rasterio>=") for line in lines)
    assert any(line.startswith("fastapi>=") for line in lines)
    assert not any("ukis" in line for line in lines)
    assert requirements("--data", extras).stdout == "ukis-csmask==0.2.1\n"


@pytest.mark.parametrize(
    ("version", "package"),
    [("cuda: Optional[str] = None", "onnxruntime"), ("cuda: Optional[str] = '13.0'", "onnxruntime-gpu")],
)
def test_an_image_has_the_onnxruntime_for_the_devices_of_its_torch(tmp_path: Path, version: str, package: str) -> None:
    torch = tmp_path / "lib" / "python3.11" / "site-packages" / "torch"
    torch.mkdir(parents=True)
    (torch / "version.py").write_text(f"__version__ = '2.13.0'\ndebug = False\n{version}\nhip: Optional[str] = None\n")
    lines = requirements("--beside", str(tmp_path), "worker,onnx").stdout.splitlines()
    assert [line for line in lines if line.startswith("onnxruntime")] == [f"{package}>=1.20"]
    assert "--beside /opt/penstock" in (DOCKER / "Dockerfile").read_text()


def test_the_api_needs_no_extra_and_no_data() -> None:
    assert not any(line.startswith(("torch", "numpy")) for line in requirements().stdout.splitlines())
    assert requirements("--data").stdout == ""


@pytest.mark.parametrize("words", [("worker,nothing",), ("nothing",)])
def test_an_unknown_extra_is_named(words: tuple[str, ...]) -> None:
    ended = requirements(*words)
    assert ended.returncode == 1
    assert "no such extras: nothing; there are" in ended.stderr
