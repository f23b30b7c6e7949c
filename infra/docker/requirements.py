"""Print the requirements of pyproject.toml: `python3 requirements.py [--data] [EXTRA,EXTRA...]`.

Packages that are wanted for the models in them alone are left out. `--data` prints these: they need no dependencies.
"""

from __future__ import annotations

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


if __name__ == "__main__":
    data = "--data" in sys.argv
    chosen = [extra for word in sys.argv[1:] if word != "--data" for extra in word.split(",") if extra]
    found = requirements(tomllib.loads(Path("pyproject.toml").read_text())["project"], chosen)
    sys.stdout.writelines(f"{line}\n" for line in found if is_data(line) == data)
