"""Penstock for interpreters of other environments: a folder for their path, with `penstock` and nothing else.

The environment of a model has its own packages and not Penstock. Processes there, and those that they start, import it
from this folder, with its entry points, as this process has it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

_NAME = "penstock"


def variables(python: Path) -> dict[str, str]:
    """Return the variables with which an interpreter, and what it starts, imports `penstock` from here."""
    own = os.environ.get("PYTHONPATH") if python == Path(sys.executable) else None
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(importable()), own)))}


@cache
def importable() -> Path:
    """Return the folder, which goes with this process."""
    folder = Path(tempfile.mkdtemp(prefix=f"{_NAME}-"))
    atexit.register(_remove, folder, os.getpid())
    (folder / _NAME).symlink_to(Path(__file__).resolve().parent.parent)
    with suppress(PackageNotFoundError):
        found = distribution(_NAME)
        for file in found.files or ():
            if file.name == "METADATA":
                about = Path(str(found.locate_file(file))).resolve().parent
                (folder / about.name).symlink_to(about)
    return folder


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a fork of it ends earlier
        shutil.rmtree(folder, ignore_errors=True)
