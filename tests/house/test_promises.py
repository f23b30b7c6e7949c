"""Each promise of the README and each invariant of ARCHITECTURE.md has tests, and `make test` runs them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.promises import INVARIANTS, PROMISES

ROOT = Path(__file__).parents[2]
NAMED = sorted({test for tests in (*PROMISES.values(), *INVARIANTS.values()) for test in tests})


def section(page: str, heading: str) -> str:
    """Return the text of a section of a page at the root."""
    found = re.search(rf"^## {heading}$(.*?)(?=^## |\Z)", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)
    assert found, f"{page} has no section '{heading}'"
    return found[1]


@pytest.fixture(scope="module")
def run() -> frozenset[str]:
    """Return the tests of the named files that `make test` runs."""
    files = sorted({test.partition("::")[0] for test in NAMED})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "not breadth and not library", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return frozenset(line for line in done.stdout.splitlines() if "::" in line)


def test_each_row_of_the_promise_has_a_test() -> None:
    rows = re.findall(r"^\| ([^|]+?) +\|", section("README.md", "The promise"), re.M)[2:]
    assert len(rows) > 5
    assert set(rows) == PROMISES.keys(), "bring tests/house/promises.py up to date with the README"
    assert all(PROMISES.values())


def test_each_invariant_has_a_test() -> None:
    numbers = re.findall(r"^ *(?:[-*] *)?\**(\d+)\.", section("ARCHITECTURE.md", "Invariants"), re.M)
    assert numbers
    assert set(map(int, numbers)) == INVARIANTS.keys(), "bring tests/house/promises.py up to date with ARCHITECTURE.md"
    assert all(INVARIANTS.values())


@pytest.mark.parametrize("test", NAMED)
def test_a_named_test_is_there_and_is_run_by_make_test(test: str, run: frozenset[str]) -> None:
    assert any(one == test or one.startswith((f"{test}::", f"{test}[")) for one in run), (
        "there is no such test, or it is marked 'breadth' or 'library'"
    )
