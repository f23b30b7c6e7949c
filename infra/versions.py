"""Print versions of the direct dependencies: `python infra/versions.py newest|lowest|installed`.

`newest` and `lowest` print constraints for pip: torch and the tools of development as in constraints.txt, and for
`lowest` the lower bounds of pyproject.toml. `installed` prints what is installed.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path

#: Extras whose packages no environment of this script has.
APART = {"dev", "terratorch"}
#: Packages whose version is pinned in every environment: each of their builds takes gigabytes.
PINNED = {"torch"}


def bounds(lines: Iterable[str]) -> Mapping[str, str]:
    """Return the lowest version of each package, by its name in lower case; empty where there is no bound."""
    parts = [re.match(r"([\w.-]+)(?:\[[^]]*\])?(?:[>=]=([\w.]+))?", line) for line in lines]
    return {part[1].lower().replace("_", "-"): part[2] or "" for part in parts if part and part[1] != "penstock"}


def constraints(wanted: str, product: Mapping[str, str], tools: Iterable[str], tested: Mapping[str, str]) -> list[str]:
    """Return the constraints of an environment with the newest or the lowest versions."""
    lowest = {name: bound for name, bound in product.items() if wanted == "lowest" and bound}
    pinned = {name: tested[name] for name in {*tools} - product.keys() | PINNED if name in tested}
    return [f"{name}=={number}" for name, number in sorted({**lowest, **pinned}.items())]


if __name__ == "__main__":
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    product = bounds([*project["dependencies"], *(line for name in extras.keys() - APART for line in extras[name])])
    if sys.argv[1] == "installed":
        found = ["versions: " + ", ".join(f"{name} {version(name)}" for name in sorted(product))]
    else:
        tested = bounds(Path("constraints.txt").read_text().splitlines())
        found = constraints(sys.argv[1], product, bounds(extras["dev"]), tested)
    sys.stdout.writelines(f"{line}\n" for line in found)
