"""Environments of models for tests, made without an index."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path


def an_environment(folder: Path, *paths: Path) -> Path:
    """Make an environment with the packages of this one, but for Penstock, and with those in the folders `paths`."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    [packages] = folder.glob("lib/python3*/site-packages")
    # Last on its path, and without what `.pth` files add: so `penstock` is not there.
    lines = [*map(str, paths), sysconfig.get_path("purelib")]
    (packages / "beside.pth").write_text("\n".join(lines) + "\n")
    return folder
