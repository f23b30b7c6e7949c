from __future__ import annotations

from math import inf, isclose

from penstock.workers.engine.line import LEAD_S, BatchLine


def test_the_first_batch_begins_at_once_and_two_are_the_most() -> None:
    line = BatchLine()
    assert (line.opens_s(at=5), line.is_full) == (0, False)
    line.add(at=5)
    assert (line.opens_s(at=5), line.is_full) == (inf, False)  # nobody knows how long a batch takes
    line.add(at=6)
    assert (line.opens_s(at=99), line.is_full) == (inf, True)


def test_a_batch_that_is_not_full_goes_shortly_before_the_last_one_ends() -> None:
    line = BatchLine()
    line.add(at=0)
    line.end(0.1, at=10)
    line.add(at=10)
    assert isclose(line.opens_s(at=10), 0.1 - LEAD_S)
    assert line.opens_s(at=10.1 - LEAD_S + 1e-6) == 0
    assert line.opens_s(at=20) == 0


def test_half_of_a_short_batch_is_over_before_the_next_one_goes() -> None:
    line = BatchLine()
    line.add(at=0)
    line.end(0.004, at=10)
    line.add(at=10)
    assert isclose(line.opens_s(at=10), 0.002)


def test_the_next_batch_begins_when_the_last_one_ends_and_a_failed_one_has_no_time() -> None:
    line = BatchLine()
    line.add(at=0)
    line.end(0.1, at=0.1)
    line.add(at=0.1)
    line.add(at=0.15)
    line.end(0, at=5)
    assert line.step_s == 0.1
    assert isclose(line.opens_s(at=5), 0.1 - LEAD_S)
