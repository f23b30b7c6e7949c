"""Delays between tries, and the time of a wait."""

from __future__ import annotations

import pytest

from penstock.client.answers import ClientError, Unreachable
from penstock.client.retries import Deadline, Delays, retry_after_s


def test_delays_double_up_to_ten_seconds_and_start_over_after_a_success() -> None:
    delays, gone = Delays(60, lambda: 1.0), Unreachable("gone")
    assert [delays.next(gone) for _ in range(8)] == [0.25, 0.5, 1, 2, 4, 8, 10, 10]
    delays.reset()
    assert delays.next(gone) == 0.25


def test_who_wants_to_know_is_told_of_each_retry() -> None:
    told: list[tuple[object, float]] = []
    gone = Unreachable("gone")
    delays = Delays(0.5, lambda: 0.0, lambda failure, pause_s: told.append((failure, pause_s)))
    delays.next(gone)
    delays.next(gone)
    with pytest.raises(Unreachable):
        delays.next(gone)
    assert told == [(gone, 0.125), (gone, 0.25)]


def test_a_deadline_passes_by_its_clock() -> None:
    now = [100.0]
    deadline = Deadline(5, clock=lambda: now[0])
    now[0] = 104
    assert (deadline.left_s(), deadline.passed) == (1, False)
    now[0] = 106
    assert (deadline.left_s(), deadline.passed) == (0, True)
    assert not Deadline(None).passed
    with pytest.raises(ClientError, match="0 or more"):
        Deadline(-1)


def test_retry_after_may_be_a_date() -> None:
    assert retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert retry_after_s("12") == 12.0
    assert retry_after_s("soon") is None
