"""Environments of the peers: one virtual environment each in a cache folder, made from `pins.toml`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PINS = Path(__file__).with_name("pins.toml")


class NotInstalled(Exception):
    """An environment could not be made."""


@dataclass(frozen=True, slots=True)
class Pin:
    """The packages of an environment."""

    packages: tuple[str, ...]
    #: Packages that are installed afterwards, without their dependencies.
    then: tuple[str, ...] = ()
    #: Another environment whose packages this one sees.
    shares: str | None = None


def default_cache() -> Path:
    """Return the folder of the environments under the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock-peers"


def read_pins(path: Path = PINS) -> Mapping[str, Pin]:
    """Return the pins by the environment's name."""
    return {
        name: Pin(tuple(pin["packages"]), tuple(pin.get("then", ())), pin.get("shares"))
        for name, pin in tomllib.loads(path.read_text()).items()
    }


def install(cache: Path, name: str) -> Path:
    """Make an environment unless it is ready and has these pins; return its Python, or raise `NotInstalled`."""
    pin, folder = read_pins()[name], cache / name
    python, ready = folder / "bin" / "python", folder / "ready.json"
    wanted = json.dumps([pin.packages, pin.then, pin.shares])
    if ready.is_file() and ready.read_text() == wanted:
        return python
    shared = install(cache, pin.shares) if pin.shares else None
    _run(sys.executable, "-m", "venv", folder)
    if shared is not None:
        _site_packages(folder).joinpath("shared.pth").write_text(f"{_site_packages(cache / str(pin.shares))}\n")
    # The torch of all environments: another one would bring gigabytes for CUDA.
    limits = folder / "limits.txt"
    limits.write_text("\n".join(read_pins()["torch"].packages) + "\n")
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    _run(*pip, "-c", limits, *pin.packages)
    if pin.then:
        _run(*pip, "--no-deps", *pin.then)
    ready.write_text(wanted)
    return python


def _site_packages(folder: Path) -> Path:
    return folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"


def _run(*words: object) -> None:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        raise NotInstalled(said[-1] if said else f"pip ended with {done.returncode}")
