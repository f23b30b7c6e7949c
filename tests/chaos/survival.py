"""A scenario at the size of every day, and the scenarios of a module."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.chaos.run import CannotRun, Run
from tests.chaos.scenarios import SCENARIOS
from tests.support.ceph import Ceph

#: Seconds after which a broken service is given up.
PATIENCE_S = float(os.environ.get("CHAOS_PATIENCE_S", "120"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))


def scenarios_of(module: ModuleType) -> list[str]:
    """Return the names of the scenarios that a module defines."""
    return [name for name, scenario in SCENARIOS.items() if scenario.__module__ == module.__name__]


def survive(name: str, folder: Path, ceph: Callable[[], Ceph] | None = None, *, durability: str = "manifest") -> None:
    """Run a scenario; it raises `PromiseBroken` with every violation that the checker found."""
    run = Run(folder, SEED, ceph=ceph, patience_s=PATIENCE_S, durability=durability)
    try:
        summary = SCENARIOS[name](run)
    except CannotRun as reason:
        pytest.fail(str(reason)) if os.environ.get("CI") else pytest.skip(str(reason))
    assert summary.scenario == name
    print(summary)  # noqa: T201  (the figures of the run; pytest shows them with -s)
