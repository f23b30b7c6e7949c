"""The promise under attack, at sizes for every day: `make chaos` runs the same at full size."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ceph import Ceph
from tests.chaos.run import CannotRun, Run
from tests.chaos.scenarios import SCENARIOS

pytestmark = [pytest.mark.slow, pytest.mark.alone]

#: A broken service is given up after this long.
PATIENCE_S = float(os.environ.get("CHAOS_PATIENCE_S", "120"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))


def survive(name: str, folder: Path, ceph: Callable[[], Ceph] | None = None, *, durability: str = "manifest") -> None:
    """Run a scenario; it raises `PromiseBroken` with every violation that the checker found."""
    run = Run(folder, SEED, ceph=ceph, patience_s=PATIENCE_S, durability=durability)
    try:
        summary = SCENARIOS[name](run)
    except CannotRun as reason:
        pytest.fail(str(reason)) if os.environ.get("CI") else pytest.skip(str(reason))
    assert summary.scenario == name
    print(summary)  # noqa: T201  (the figures of the run; pytest shows them with -s)


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "s3_trouble"])
def test_no_job_is_lost_doubled_or_changed_under(name: str, tmp_path: Path) -> None:
    survive(name, tmp_path)
