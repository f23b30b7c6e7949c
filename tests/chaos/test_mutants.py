"""The mutants fit the code: each changes one place, and a copy of the tree holds what the scenarios import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.mutants import MUTANTS, Mutant, copy_tree
from tests.chaos.processes import ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_one_place(mutant: Mutant) -> None:
    assert (ROOT / mutant.path).read_text().count(mutant.old) == 1


@pytest.mark.breadth
def test_the_scenarios_can_be_imported_from_a_copy(tmp_path: Path) -> None:
    copy_tree(tmp_path)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path / 'src'}:{tmp_path}"}
    found = "import tests.chaos.scenarios as found; print(found.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", found], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "tests" / "chaos" / "scenarios.py")
