"""The promise while workers come and leave by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import on_fleet
from tests.chaos.survival import scenarios_of, survive

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.breadth]


@pytest.mark.parametrize("name", scenarios_of(on_fleet))
def test_no_job_is_lost_doubled_or_changed_under(name: str, tmp_path: Path) -> None:
    survive(name, tmp_path)
