"""Penstock for interpreters of other environments: a folder for their path, with `penstock` and nothing else.

The environment of a model has its own packages and not Penstock. Processes there, and those that they start, import it
from this folder, with its entry points, as this process has it.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

_NAME = "penstock"
#: Variables with paths of an environment.
_PATHS = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")


def fitted(variables: Mapping[str, str], python: Path) -> dict[str, str]:
    """Return a process's variables for an interpreter; another one than this sees no path of this one but `penstock`'s.

    What the process starts imports `penstock` too.
    """
    if python == Path(sys.executable):
        return dict(variables)
    kept = {name: value for name, value in variables.items() if name not in _PATHS}
    return {**kept, "PYTHONPATH": str(importable())}


def importable() -> Path:
    """Return the folder: one on this machine for a user and an installation, which stays for later processes."""
    links = _links()
    digest = hashlib.sha256(repr(links).encode()).hexdigest()[:20]
    folder = Path(tempfile.gettempdir(), f"{_NAME}-{os.getuid()}-{digest}")
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if folder.lstat().st_uid != os.getuid():  # another user has the name
        folder = Path(tempfile.mkdtemp(prefix=f"{_NAME}-"))
    for name, target in links:
        with suppress(FileExistsError):
            (folder / name).symlink_to(target)
    return folder


@cache
def _links() -> tuple[tuple[str, str], ...]:
    """Return the names in the folder, and the places of the package and of its metadata."""
    package = Path(__file__).resolve().parent.parent
    found = [package]
    with suppress(PackageNotFoundError):
        own = distribution(_NAME)
        found += [
            Path(str(own.locate_file(file))).resolve().parent for file in own.files or () if file.name == "METADATA"
        ]
    return tuple((path.name, str(path)) for path in found)
