"""Print the requirements of pyproject.toml: `python3 requirements.py [--data] [--beside FOLDER] [EXTRA,EXTRA...]`.

Packages that are wanted for the models in them alone are left out. `--data` prints these: they need no dependencies.
`--beside FOLDER` names an environment: where its torch uses CUDA, onnxruntime is the build that does too.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

#: Packages of which only files are read. The dependencies of ukis-csmask take 110 MB.
DATA = {"ukis-csmask"}


def requirements(project: dict[str, Any], extras: list[str]) -> list[str]:
    """Return the requirements of a service with these extras; raise `SystemExit` for an unknown one."""
    optional: dict[str, list[str]] = project["optional-dependencies"]
    unknown = [extra for extra in extras if extra not in optional]
    if unknown:
        raise SystemExit(f"no such extras: {', '.join(unknown)}; there are {', '.join(sorted(optional))}")
    lines = [line for extra in ("service", *extras) for line in optional[extra] if not line.startswith("penstock[")]
    return [*project["dependencies"], *lines]


def is_data(requirement: str) -> bool:
    """Return True for a package of which only files are read."""
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0] in DATA


def uses_cuda(environment: Path) -> bool:
    """Return True if the torch in an environment is a build for CUDA."""
    files = environment.glob("lib/python3*/site-packages/torch/version.py")
    return any(re.search(r"^cuda\b.*= *['\"]", file.read_text(), re.MULTILINE) for file in files)


def for_cuda(requirement: str) -> str:
    """Return a requirement, with the build of onnxruntime that uses CUDA."""
    return re.sub(r"^onnxruntime(?=[^A-Za-z0-9._-]|$)", "onnxruntime-gpu", requirement)


def main() -> None:
    """Print the requirements, one a line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("extras", nargs="*")
    parser.add_argument("--data", action="store_true")
    parser.add_argument("--beside", type=Path)
    given = parser.parse_args()
    chosen = [extra for word in given.extras for extra in word.split(",") if extra]
    found = requirements(tomllib.loads(Path("pyproject.toml").read_text())["project"], chosen)
    if given.beside is not None and uses_cuda(given.beside):
        found = [for_cuda(line) for line in found]
    sys.stdout.writelines(f"{line}\n" for line in found if is_data(line) == given.data)


if __name__ == "__main__":
    main()
