"""Packages made by hand, for environments that are built without an index."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

_METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
_WHEEL = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
#: A build backend that writes what it sees of the environment into its own module.
_BACKEND = """
import json, os, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "{name}-{version}-py3-none-any.whl"
    with open({log!r}, "a") as log:
        log.write("built\\n")
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        wheel.writestr("{name}.py", "SEEN = " + repr(dict(os.environ)) + "\\nVERSION = '{version}'\\n")
        wheel.writestr("{name}-{version}.dist-info/METADATA", {metadata!r})
        wheel.writestr("{name}-{version}.dist-info/WHEEL", {wheel!r})
        wheel.writestr("{name}-{version}.dist-info/RECORD", "")
    return name
"""


def write_wheel(folder: Path, name: str, version: str, text: str = "") -> Path:
    """Write a wheel of one module, with its version as `VERSION`."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", f"VERSION = {version!r}\n{text}")
        wheel.writestr(f"{name}-{version}.dist-info/METADATA", _METADATA.format(name=name, version=version))
        wheel.writestr(f"{name}-{version}.dist-info/WHEEL", _WHEEL)
        wheel.writestr(f"{name}-{version}.dist-info/RECORD", "")
    return path


def write_source(folder: Path, name: str, version: str, log: Path) -> Path:
    """Write a source package whose build adds a line to `log`; its module has the build's environment as `SEEN`."""
    about = _METADATA.format(name=name, version=version)
    backend = _BACKEND.format(name=name, version=version, log=str(log), metadata=about, wheel=_WHEEL)
    project = f'[project]\nname = "{name}"\nversion = "{version}"\n'
    system = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    path = folder / f"{name}-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file, text in (("PKG-INFO", about), ("pyproject.toml", project + system), ("backend.py", backend)):
            info = tarfile.TarInfo(f"{name}-{version}/{file}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return path


def write_uv_config(folder: Path, packages: Path) -> Path:
    """Write a `uv.toml` by which packages come from a folder alone."""
    path = folder / "uv.toml"
    path.write_text(f'no-index = true\nfind-links = ["{packages}"]\n')
    return path
