"""The number of workers that `penstock up` starts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.up.scaling import LONGEST_PAUSE_S, Counts, Pool, Range

small = st.integers(0, 6)
counts = st.builds(Counts, small, small, small, small, small)


@pytest.mark.parametrize(("text", "least", "most"), [("1", 1, 1), ("3", 3, 3), ("0..4", 0, 4), ("2..2", 2, 2)])
def test_a_range_is_a_number_or_two(text: str, least: int, most: int) -> None:
    assert Range.parse(text) == Range(least, most)


@pytest.mark.parametrize("text", ["", "0", "-1", "4..2", "0..0", "0..", "..4", "a", "1...4", "1..2..3", "0.5"])
def test_other_ranges_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--workers"):
        Range.parse(text)


@pytest.mark.parametrize(
    ("found", "starts"),
    [
        (Counts(wanted=2, waiting=5), 2),
        (Counts(wanted=9, waiting=50), 4),
        (Counts(wanted=3, waiting=5, claiming=1, starting=1, here=2), 1),
        (Counts(wanted=3, waiting=5, claiming=3), 0),
        (Counts(wanted=3, waiting=5, claiming=1, here=4), 0),
        (Counts(wanted=2, waiting=0), 0),  # each running job has its worker
        (Counts(wanted=1, waiting=1, here=1), 1),  # the one here drains
        (Counts(wanted=2, waiting=1, claiming=1, here=3), 1),
        (Counts(wanted=1, waiting=1, starting=1), 0),
    ],
)
def test_as_many_start_as_are_missing(found: Counts, starts: int) -> None:
    assert Pool(most=4).missing(found, at=0) == starts


@given(found=counts, most=st.integers(1, 6))
def test_starts_never_exceed_the_need_or_the_machine(found: Counts, most: int) -> None:
    starts = Pool(most).missing(found, at=0)
    assert 0 <= starts <= max(0, most - found.here)
    assert starts == 0 or starts <= max(0, found.wanted - found.claiming - found.starting)
    assert found.waiting or not starts


@given(found=counts)
def test_waiting_jobs_without_a_worker_get_one(found: Counts) -> None:
    if found.wanted and found.waiting and not found.claiming and not found.starting:
        assert Pool(found.here + 1).missing(found, at=0) == 1


def test_pauses_grow_while_workers_end_at_once_and_end_with_one_that_leaves_well() -> None:
    need, pool, now = Counts(wanted=1, waiting=1), Pool(1), 0.0
    pauses = []
    for _ in range(7):
        pool = pool.failed(at=now)
        assert not pool.missing(need, at=pool.due_s - 0.01)
        assert pool.missing(need, at=pool.due_s)
        pauses.append(pool.due_s - now)
        now = pool.due_s
    assert pauses == [0.5, 1, 2, 4, 8, 10, 10]
    assert pool.left(jobs=1, waiting=1, at=now).failures == 0
    assert pool.well().failed(at=now).due_s == now + 0.5


def test_workers_do_not_come_and_go_for_jobs_that_they_cannot_run() -> None:
    need, pool, now, pauses = Counts(wanted=1, waiting=1), Pool(4), 0.0, []
    for _ in range(7):
        pool = pool.left(jobs=0, waiting=1, at=now)
        assert not pool.missing(need, at=pool.due_s - 1)
        pauses.append(pool.due_s - now)
        now = pool.due_s
    assert pauses == [30, 60, 120, 240, 480, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    assert pool.missing(Counts(wanted=2, waiting=2), at=0) == 2  # other work has come
    assert pool.missing(Counts(wanted=1, waiting=2), at=0) == 1  # which fits into the same worker
    assert pool.missing(Counts(wanted=1, waiting=2, claiming=1), Counts(wanted=1, waiting=1), at=0) == 1
    assert pool.left(jobs=0, waiting=0, at=now).missing(need, at=now) == 1
