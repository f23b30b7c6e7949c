"""Build what a release consists of into `dist/VERSION`: `python infra/release.py [--no-images]`.

- the wheel and the source archive, after a check that the wheel installs and starts, also as the client alone
- for the API and for a CPU worker: the packages inside (CycloneDX) and their licences
- the container images as OCI archives, where root, debootstrap, buildah and podman are there
- the checksums of all of it

The version is that of pyproject.toml. CHANGELOG.md needs a section for it, and git no changes that are not committed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Extras in each image: the defaults of infra/docker/Dockerfile.
EXTRAS = {"api": "", "worker": "worker,geo,onnx,demo"}
TOOLS = ("cyclonedx-bom", "pip-licenses")
IMAGE_TOOLS = ("debootstrap", "buildah", "podman")


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def do(*words: str | Path) -> None:
    """Run a program; `CalledProcessError` where it fails."""
    subprocess.run([str(word) for word in words], check=True, cwd=ROOT)


def said(*words: str) -> str:
    """Run a program and return its standard output; `CalledProcessError` where it fails."""
    return subprocess.run(words, check=True, capture_output=True, text=True, cwd=ROOT).stdout


def version() -> str:
    """Return the version to release; `SystemExit` where the tree is not ready for it."""
    found = str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
    if not re.search(rf"^## {re.escape(found)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE):
        raise SystemExit(f"CHANGELOG.md has no section '## {found}'")
    if changed := said("git", "status", "--porcelain").strip():
        raise SystemExit(f"not committed:\n{changed}")
    return found


def environment(folder: Path, *requirements: str | Path, dependencies: bool = True) -> Path:
    """Return the interpreter of an environment with these requirements, added where it exists, and without pip."""
    if not folder.exists():
        venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    options = () if dependencies else ("--no-deps",)
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check")
    do(*pip, *options, "--constraint", ROOT / "constraints.txt", *requirements)
    return python


def size_mb(python: Path) -> float:
    """Return the megabytes that the packages of an environment take."""
    folder = python.parents[1] / "lib"
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_symlink()) / 1e6


def build_packages(out: Path) -> Path:
    """Build the page, the source archive with it, and the wheel from that; return the wheel."""
    do("make", "--no-print-directory", "page")
    if not (ROOT / "api" / "ui" / "dist" / "index.html").is_file():
        raise SystemExit("the page was not built, and the wheel carries it: install Node.js 18 or newer")
    do(sys.executable, "-m", "build", "--outdir", out)
    [wheel] = out.glob("*.whl")
    return wheel


def check_client(wheel: Path, work: Path) -> None:
    """Check that the wheel alone is the client."""
    python = environment(work / "client", wheel)
    do(python, "-c", "import penstock.client as c; c.Client('http://127.0.0.1:1').close(); c.AsyncClient")
    say(f"client alone: {size_mb(python):.0f} MB")


def describe(role: str, wheel: Path, out: Path, work: Path) -> None:
    """Install the packages of an image, and write a list of them and of their licences."""
    listed, data = (work / f"{role}{words}.txt" for words in ("", "-data"))
    for path, words in ((listed, ()), (data, ("--data",))):
        path.write_text(said(sys.executable, "infra/docker/requirements.py", *words, EXTRAS[role]))
    environment(work / role, "--requirement", listed)
    python = environment(work / role, wheel, "--requirement", data, dependencies=False)
    do(python, "-m", "penstock.cli", "--version")
    tools = work / "tools" / "bin"
    name = f"{out / wheel.name.partition('-py3')[0]}-{role}"
    project = ROOT / "pyproject.toml"
    do(
        tools / "cyclonedx-py", "environment", "--pyproject", project, "--output-reproducible",
        "--output-file", f"{name}.cdx.json", python,
    )  # fmt: skip
    do(
        tools / "pip-licenses", "--python", python, "--with-urls", "--format", "markdown",
        "--output-file", f"{name}-licences.md",
    )  # fmt: skip
    say(f"{role}: {size_mb(python):.0f} MB of packages")


def build_images(out: Path) -> None:
    """Build the images, and keep them as archives; say why not where that is impossible."""
    lacking = [tool for tool in IMAGE_TOOLS if shutil.which(tool) is None]
    if lacking or os.geteuid() != 0:
        say(f"SKIPPED: images ({'not root' if not lacking else 'no ' + ', '.join(lacking)})")
        return
    for role in EXTRAS:
        do(sys.executable, "infra/docker/build.py", role)
        archive = out / f"penstock-{role}-{out.name}.oci.tar"
        do("podman", "save", "--quiet", "--format", "oci-archive", "--output", archive, f"localhost/penstock-{role}")


def write_checksums(out: Path) -> None:
    """Write the SHA-256 of each file, in the format of `sha256sum`."""
    lines = []
    for path in sorted(out.iterdir()):
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    (out / "SHA256SUMS").write_text("".join(lines))


def release(*, images: bool) -> None:
    """Build everything; leave no half of a release behind."""
    found = version()
    final, half = ROOT / "dist" / found, ROOT / "dist" / f"{found}.part"
    shutil.rmtree(half, ignore_errors=True)
    out = half / found
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="penstock-release-") as name:
        work = Path(name)
        wheel = build_packages(out)
        check_client(wheel, work)
        environment(work / "tools", *TOOLS)
        for role in EXTRAS:
            describe(role, wheel, out, work)
    if images:
        build_images(out)
    write_checksums(out)
    shutil.rmtree(final, ignore_errors=True)
    out.rename(final)
    half.rmdir()
    say(f"{final.relative_to(ROOT)}: check it with `sha256sum --check SHA256SUMS`")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-images", action="store_true", help="leave the container images out")
    release(images=not parser.parse_args().no_images)
