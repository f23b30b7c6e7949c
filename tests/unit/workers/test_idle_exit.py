"""The reasons for which a worker leaves."""

from __future__ import annotations

import pytest

from penstock.workers.idle_exit import Activity, ExitReason, exit_reason

IDLE = Activity(running=0, claimed=3, busy_s=100.0)


@pytest.mark.parametrize(
    ("activity", "at", "idle_exit_s", "max_jobs", "why"),
    [
        (IDLE, 159.9, 60, 0, None),
        (IDLE, 160.0, 60, 0, ExitReason.IDLE),
        (Activity(running=0, claimed=3, busy_s=100.0, fetching=True), 1e9, 60, 0, None),
        (IDLE, 1e9, 0, 0, None),
        (Activity(running=1, claimed=3, busy_s=0.0), 1e9, 60, 0, None),
        (IDLE, 100.0, 60, 3, ExitReason.MAX_JOBS),
        (IDLE, 100.0, 60, 4, None),
        (Activity(running=2, claimed=3, busy_s=100.0), 100.0, 0, 3, ExitReason.MAX_JOBS),
    ],
)
def test_a_worker_leaves_when_it_is_idle_or_has_claimed_its_jobs(
    activity: Activity, at: float, idle_exit_s: float, max_jobs: int, why: ExitReason | None
) -> None:
    assert exit_reason(activity, at=at, idle_exit_s=idle_exit_s, max_jobs=max_jobs) is why
