"""Recent refusals: valid for a short time and for one tenant only."""

from __future__ import annotations

from penstock.api.admission.concurrency import LOOK_UP_INTERVAL_S, REMEMBERED_S, RecentRefusals
from penstock.errors import TooManyJobs


def test_what_a_tenant_was_told_counts_for_a_moment_and_for_it_alone() -> None:
    now_s = [100.0]
    refusals = RecentRefusals(clock=lambda: now_s[0])
    assert not refusals.any_recent

    refusals.record("flood", TooManyJobs("20 jobs are waiting or running", retry_after_s=7))
    now_s[0] += REMEMBERED_S * 0.9
    told = refusals.recent("flood")
    assert told is not None
    assert (told.detail, told.retry_after_s) == ("20 jobs are waiting or running", 7)
    assert refusals.recent("small") is None

    now_s[0] += REMEMBERED_S * 0.2
    assert refusals.any_recent
    assert refusals.recent("flood") is None
    assert not refusals.any_recent


def test_of_a_full_tenant_one_request_at_a_time_may_look_for_its_job() -> None:
    now_s = [100.0]
    refusals = RecentRefusals(clock=lambda: now_s[0])
    assert [refusals.may_look_up("flood"), refusals.may_look_up("flood"), refusals.may_look_up("small")] == [
        True,
        False,
        True,
    ]
    now_s[0] += LOOK_UP_INTERVAL_S
    assert [refusals.may_look_up("flood"), refusals.may_look_up("flood")] == [True, False]
