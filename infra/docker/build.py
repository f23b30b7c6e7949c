"""Build the images without Docker and without a registry of images: `python infra/docker/build.py [api] [worker]`.

Needs root, debootstrap, buildah and podman. Makes the base with debootstrap, once (`podman rmi penstock-base` removes
it), builds with `buildah bud --isolation chroot` from the Dockerfile that Docker builds from, and prints sizes. pip
gets this machine's settings: they are mounted while the images are built, and stay in none of them.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
BASE = "localhost/penstock-base"
#: Bytes that each image may take above its base.
LIMITS_BYTES = {"api": 100_000_000, "worker": 1_300_000_000}


def image(target: str) -> str:
    """Return the name of a target's image."""
    return f"localhost/penstock-{target}"


def make_base() -> None:
    """Make the base, Debian with Python, unless it is there."""
    found = subprocess.run(["podman", "image", "exists", BASE], check=False)  # noqa: S607  (as all programs here)
    if found.returncode == 0:
        return
    packages = "python3,python3-venv,ca-certificates"
    with tempfile.TemporaryDirectory(prefix="penstock-base-") as name:
        _do("debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", f"{name}/root", quiet=True)
        for litter in ("var/cache/apt/archives", "var/lib/apt/lists"):
            _do("find", f"{name}/root/{litter}", "-type", "f", "-delete")
        _do("tar", "--create", "--directory", f"{name}/root", "--file", f"{name}/root.tar", ".")
        _do("podman", "import", "--quiet", f"{name}/root.tar", BASE, quiet=True)


def pip_settings() -> dict[str, str]:
    """Return the settings of pip on this machine that say where packages come from."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True
    ).stdout
    found = dict(re.findall(r"^(?:global|:env:)\.(\S+?)=(.*)$", listed, re.MULTILINE))
    wanted = ("index-url", "extra-index-url", "find-links", "trusted-host", "cert", "proxy", "default-timeout")
    values = {name.lstrip("."): str(ast.literal_eval(value)) for name, value in found.items()}
    return {name: values[name] for name in wanted if name in values}


def folders(settings: Mapping[str, str]) -> list[Path]:
    """Return the folders of this machine that these settings name."""
    words = " ".join(settings.values()).split()
    paths = [Path(word.removeprefix("file://")) for word in words if word.startswith(("/", "file:///"))]
    # An index in a folder may link to files beside it.
    own = [path.parent if path.is_file() or path.name == "simple" else path for path in paths]
    return sorted({path for path in own if path.is_dir()})


def build(target: str) -> None:
    """Build an image; what buildah prints goes to standard error."""
    settings = pip_settings()
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as conf:
        conf.write("[global]\n" + "".join(f"{name} = {value}\n" for name, value in settings.items()))
        conf.flush()
        mounts = [word for path in folders(settings) for word in ("--volume", f"{path}:{path}:ro")]
        _do(
            "buildah", "bud", "--isolation", "chroot", "--layers", "--secret", f"id=pip,src={conf.name}", *mounts,
            "--build-arg", f"BASE={BASE}", "--build-arg", "TORCH_INDEX=",
            "--file", str(ROOT / "infra/docker/Dockerfile"), "--target", target, "--tag", image(target), str(ROOT),
        )  # fmt: skip


def size_bytes(target: str) -> int:
    """Return the bytes that an image takes above its base."""
    words = ["podman", "image", "inspect", image(target), BASE]
    listed = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
    return int(listed[0]["Size"]) - int(listed[1]["Size"])


def _do(*words: str, quiet: bool = False) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL if quiet else sys.stderr)


if __name__ == "__main__":
    make_base()
    for chosen in sys.argv[1:] or LIMITS_BYTES:
        build(chosen)
        sys.stdout.write(f"{image(chosen)}: {size_bytes(chosen) / 1e6:.0f} MB above its base\n")
