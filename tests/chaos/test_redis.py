"""The promise under faults of Redis and of the way to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import on_redis
from tests.chaos.survival import scenarios_of, survive

pytestmark = [pytest.mark.slow, pytest.mark.alone]


#: Scenarios that wait for elections, copies of servers and time-outs.
LONG = {on_redis.failovers.__name__, on_redis.valkey_hangs.__name__}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.breadth if name in LONG else ()) for name in scenarios_of(on_redis)],
)
def test_no_job_is_lost_doubled_or_changed_under(name: str, tmp_path: Path) -> None:
    survive(name, tmp_path)
