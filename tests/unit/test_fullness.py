"""Fullness: what a tenant was told counts for a moment, and for it alone."""

from __future__ import annotations

from penstock.api.fullness import LOOK_EVERY_S, REMEMBERED_S, Fullness
from penstock.errors import TooManyJobs


def test_what_a_tenant_was_told_counts_for_a_moment_and_for_it_alone() -> None:
    now_s = [100.0]
    fullness = Fullness(clock=lambda: now_s[0])
    assert not fullness.any_is_full

    fullness.note("flood", TooManyJobs("20 jobs are waiting or running", retry_after_s=7))
    now_s[0] += REMEMBERED_S * 0.9
    told = fullness.of("flood")
    assert told is not None
    assert (told.detail, told.retry_after_s) == ("20 jobs are waiting or running", 7)
    assert fullness.of("small") is None

    now_s[0] += REMEMBERED_S * 0.2
    assert fullness.any_is_full
    assert fullness.of("flood") is None
    assert not fullness.any_is_full


def test_of_a_full_tenant_one_request_at_a_time_may_look_for_its_job() -> None:
    now_s = [100.0]
    fullness = Fullness(clock=lambda: now_s[0])
    assert [fullness.may_look("flood"), fullness.may_look("flood"), fullness.may_look("small")] == [True, False, True]
    now_s[0] += LOOK_EVERY_S
    assert [fullness.may_look("flood"), fullness.may_look("flood")] == [True, False]
