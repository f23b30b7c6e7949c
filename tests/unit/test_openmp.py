"""The wait of a pass's threads for each other."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from penstock.openmp import as_given, let_threads_sleep

#: Does what `penstock worker` does before it imports torch. OpenMP then shows its settings.
WORKER = """
import os, sys
from penstock.openmp import let_threads_sleep
let_threads_sleep(os.environ)
assert "torch" not in sys.modules
import torch
"""


def test_the_threads_of_a_pass_sleep_while_they_wait() -> None:
    pytest.importorskip("torch")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    environment["OMP_DISPLAY_ENV"] = "true"
    done = subprocess.run(
        [sys.executable, "-c", WORKER], env=environment, check=True, capture_output=True, text=True
    )  # fmt: skip
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in done.stderr


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_a_choice_of_the_environment_counts(name: str) -> None:
    chosen = {name: "active"}
    let_threads_sleep(chosen)
    assert chosen == as_given(chosen) == {name: "active"}


def test_another_program_does_not_get_what_was_set_here() -> None:
    environment = {"PATH": "/bin"}
    let_threads_sleep(environment)
    assert environment["OMP_WAIT_POLICY"] == "passive"
    assert as_given(environment) == {"PATH": "/bin"}
