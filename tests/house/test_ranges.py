"""The page on dependencies names the ranges of pyproject.toml and the lowest versions that ran."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PAGE = (ROOT / "docs" / "reference" / "dependencies.md").read_text(encoding="utf-8")
#: Extras whose packages are not run at both ends.
APART = {"dev", "olmoearth", "terratorch"}


def ranges() -> list[tuple[str, str]]:
    """Return the names and ranges of all packages beside those of `APART`, each once if its ranges are equal."""
    extras = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *(line for name in extras.keys() - APART for line in extras[name])]
    parts = [re.match(r"([\w.-]+)(?:\[[^]]*\])?([^;]*)", line) for line in lines]
    return sorted({(part[1], part[2].strip()) for part in parts if part and part[1] != "penstock"})


def test_each_package_has_one_range_with_a_lower_bound() -> None:
    names = [name for name, _ in ranges()]
    assert names == sorted(set(names)), "extras have the same range of a package"
    assert [name for name, range_ in ranges() if not re.match(r"[>=]=\d", range_)] == []


def test_the_page_names_each_range_and_the_lowest_version_that_ran() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \| ([\d.]+) \| [\d.]+ \|$", PAGE, re.MULTILINE)
    assert sorted((name, range_) for name, range_, _ in rows) == ranges()
    for name, range_, lowest in rows:
        if name != "torch":  # one version in both runs
            assert re.fullmatch(rf"{re.escape(re.split('[=,]+', range_)[1])}(\.0)*", lowest), name
