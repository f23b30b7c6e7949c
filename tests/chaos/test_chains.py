"""The promise while jobs wait for each other. `make chaos` runs the same scenario at full size."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import on_chains
from tests.chaos.survival import scenarios_of, survive

pytestmark = [pytest.mark.slow, pytest.mark.alone]


@pytest.mark.parametrize("name", scenarios_of(on_chains))
def test_no_job_is_lost_doubled_or_changed_under(name: str, tmp_path: Path) -> None:
    survive(name, tmp_path)
