"""The least rate of a server."""

from __future__ import annotations

import httpcore2
import pytest

from penstock.errors import FetchFailed
from penstock.intake.connections import LeastRate


def test_a_server_below_the_least_rate_fails_at_the_end_of_the_window_and_the_error_names_the_rate() -> None:
    rate = LeastRate(1000, 30)
    for _ in range(29):
        rate.count(1, 1)
    with pytest.raises(FetchFailed, match=r"fewer than 1,000 bytes a second for 30 s"):
        rate.count(1, 1)


def test_a_server_that_begins_late_and_then_sends_is_not_below_it() -> None:
    rate = LeastRate(1000, 30)
    rate.count(0, 29)
    rate.count(40_000, 2)


def test_what_a_server_sent_in_one_window_does_not_count_in_the_next() -> None:
    rate = LeastRate(1000, 30)
    rate.count(10_000_000, 30)
    with pytest.raises(FetchFailed):
        rate.count(29_999, 30)


def test_the_waits_of_many_requests_add_up() -> None:
    rate = LeastRate(1000, 30)
    rate.count(9_000, 10)
    rate.count(9_000, 10)
    with pytest.raises(FetchFailed):
        rate.count(9_000, 10)


def test_a_server_that_has_sent_nothing_is_told_apart_from_no_other_failure() -> None:
    with pytest.raises(httpcore2.ReadTimeout):
        LeastRate(1000, 30).count(0, 30)


def test_a_rate_of_0_is_no_limit() -> None:
    LeastRate(0, 30).count(0, 1e9)
