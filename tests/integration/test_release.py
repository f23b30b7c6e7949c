"""`make release`: what it refuses, and what it builds."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.breadth

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a copy of the files of this repository, committed as the only commit of another."""
    folder = tmp_path / "tree"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True, capture_output=True, text=True, cwd=ROOT,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_symlink() or (ROOT / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target, follow_symlinks=False)
    git(folder, "init", "--quiet")
    commit(folder)
    return folder


def git(tree: Path, *words: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.invalid", *words], check=True, cwd=tree)


def commit(tree: Path) -> None:
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message", "all")


def release(tree: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "infra/release.py", "--no-images"]
    return subprocess.run(command, capture_output=True, text=True, cwd=tree, check=False)


def packages(listed: Path) -> set[str]:
    return {part["name"] for part in json.loads(listed.read_text())["components"]}


def test_what_is_not_committed_or_not_in_the_changelog_is_not_released(tree: Path) -> None:
    (tree / "notes.txt").write_text("a note")
    done = release(tree)
    assert (done.returncode, done.stderr) == (1, "not committed:\n?? notes.txt\n")
    changelog = tree / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("## 0.1.0", "## Unreleased"))
    assert release(tree).stderr == "CHANGELOG.md has no section '## 0.1.0'\n"
    assert not (tree / "dist").exists()


@pytest.mark.timeout(900)
def test_a_release_has_packages_lists_of_what_is_inside_and_checksums(tree: Path) -> None:
    done = release(tree)
    assert done.returncode == 0, done.stderr
    folder = tree / "dist" / "0.1.0"
    parts = {path.name.removeprefix("penstock-0.1.0") for path in folder.iterdir()} - {"SHA256SUMS"}
    roles = {f"-{role}{kind}" for role in ("api", "worker") for kind in (".cdx.json", "-licences.md")}
    assert parts == {"-py3-none-any.whl", ".tar.gz"} | roles
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], check=True, cwd=folder)
    inside = {role: packages(folder / f"penstock-0.1.0-{role}.cdx.json") for role in ("api", "worker")}
    assert {"celery", "fastapi", "httpx2"} <= inside["api"] < inside["worker"]
    assert {"torch", "rasterio", "numpy"} <= inside["worker"] - inside["api"]
    assert "client alone: " in done.stdout
