"""The promise under faults of clients, receivers and disks; `test_stores.py` has those of object stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import on_surroundings
from tests.chaos.survival import scenarios_of, survive

pytestmark = [pytest.mark.slow, pytest.mark.alone]


@pytest.mark.breadth(but=tuple(name for name in scenarios_of(on_surroundings) if name != "flood"))
@pytest.mark.parametrize("name", [name for name in scenarios_of(on_surroundings) if name != "s3_trouble"])
def test_no_job_is_lost_doubled_or_changed_under(name: str, tmp_path: Path) -> None:
    survive(name, tmp_path)
