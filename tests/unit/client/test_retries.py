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


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120.0),
        (" 0 ", 0.0),
        ("9" * 400, 999_999_999_999.0),
        ("Fri, 21 Nov 2025 10:00:30 GMT", 30.0),
        ("Friday, 21-Nov-25 10:00:30 GMT", 30.0),
        ("Fri, 21 Nov 2025 09:00:00 GMT", 0.0),
        ("Fri, 21 Nov 2025 10:00:30 -0000", 30.0),
        ("soon", None),
        ("", None),
        (None, None),
        ("-5", None),
        ("\xb2", None),  # a digit to Python, and no number
        ("Fri, 99 Nov 9999999 10:00:30 GMT", None),
    ],
)
def test_a_server_may_ask_for_patience_in_seconds_or_as_a_date(header: str | None, seconds: float | None) -> None:
    assert retry_after_s(header, 1_763_719_200.0) == seconds


def test_a_date_that_has_passed_is_no_wait() -> None:
    assert retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
