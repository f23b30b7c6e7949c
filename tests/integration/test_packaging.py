"""The wheel that users get holds every module and data file of the repository, through the four links."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINKED = ("api", "workers", "processors", "storage")


def tracked() -> set[str]:
    """Return the package's files that git knows, under the names that the wheel has; not the sources of the page."""
    listed = subprocess.run(
        ["git", "ls-files", "src/penstock", *LINKED], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    files = [name for name in listed if not (ROOT / name).is_symlink() and (ROOT / name).exists()]
    named = {f"penstock/{name.removeprefix('src/penstock/')}" for name in files}
    return {name for name in named if not name.startswith("penstock/api/ui/")}


def bundled() -> set[str]:
    """Return the files of the page, where it was built, under the names that the wheel has."""
    files = (ROOT / "api" / "ui" / "dist").rglob("*.*")
    return {f"penstock/{path.relative_to(ROOT)}" for path in files if path.is_file()}


@pytest.mark.breadth
def test_an_sdist_and_the_wheel_made_from_it_hold_the_whole_package(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)],
        check=True,
        capture_output=True,
    )
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("penstock/")}
        entry_points = archive.read(next(n for n in archive.namelist() if n.endswith("entry_points.txt"))).decode()
    assert packed == tracked() | bundled()
    assert "penstock/storage/redis/lua/common.lua" in packed
    assert "penstock.io_processors" in entry_points


def test_the_links_are_relative_and_lead_to_the_folders_at_the_top() -> None:
    for name in LINKED:
        link = ROOT / "src" / "penstock" / name
        assert link.is_symlink()
        assert link.readlink() == Path("../..") / name
