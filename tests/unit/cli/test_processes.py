"""The commands that run the processes of the service."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from penstock.cli.processes import let_threads_sleep

#: Does what `penstock worker` does before it imports torch. OpenMP then shows its settings.
WORKER = """
import os, sys
from penstock.cli.processes import let_threads_sleep
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
    assert chosen == {name: "active"}
