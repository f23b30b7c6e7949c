"""The number of workers that a queue wants: enough for its work, never fewer than are busy, none for nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from penstock.scaling import Load, ScalingBounds, Waiting, wanted_workers

UNBOUNDED = ScalingBounds(max_workers=10**9)
lengths = st.none() | st.floats(0, 1e4)
waiting = st.lists(st.builds(Waiting, jobs=st.integers(0, 10_000), job_s=lengths), max_size=4)
loads = st.builds(Load, waiting=waiting, running=st.integers(0, 100), busy=st.integers(0, 100), slots=st.integers(1, 8))
ranges = st.builds(
    lambda low, more, target_s: ScalingBounds(min_workers=low, max_workers=low + more, target_wait_s=target_s),
    st.integers(0, 5), st.integers(0, 50), st.floats(0.1, 1000),
)  # fmt: skip


@pytest.mark.parametrize(
    ("load", "wanted"),
    [
        (Load([], 0, 0, 2), 0),
        (Load([Waiting(1, None)], 0, 0, 2), 1),
        (Load([Waiting(1000, 0.1)], 0, 0, 2), 2),  # 100 s of work in 30 s need 3.3 slots
        (Load([Waiting(4, 400)], 0, 0, 1), 4),  # no more than can be used
        (Load([Waiting(4, 400)], 0, 0, 4), 1),
        (Load([Waiting(1000, 0.1), Waiting(4, 400)], 0, 0, 1), 8),
        (Load([Waiting(5, None)], 3, 2, 2), 4),
        (Load([Waiting(5, None)], 3, 2, 2, paused=True), 2),
        (Load([Waiting(1, 0)], 0, 0, 1), 1),
    ],
)
def test_it_is_enough_to_begin_the_waiting_jobs_in_time(load: Load, wanted: int) -> None:
    assert wanted_workers(load, ScalingBounds()) == wanted


@given(load=loads, bounds=ranges)
def test_it_is_never_below_the_busy_workers_and_stays_in_its_bounds(load: Load, bounds: ScalingBounds) -> None:
    wanted = wanted_workers(load, bounds)
    assert wanted >= max(load.busy, bounds.min_workers)
    assert wanted <= max(load.busy, bounds.max_workers)


@given(load=loads, bounds=ranges, more=st.builds(Waiting, jobs=st.integers(0, 100), job_s=lengths))
def test_more_work_never_wants_fewer_workers(load: Load, bounds: ScalingBounds, more: Waiting) -> None:
    fewer = wanted_workers(load, bounds)
    assert wanted_workers(replace(load, waiting=[*load.waiting, more]), bounds) >= fewer
    assert wanted_workers(replace(load, running=load.running + more.jobs), bounds) >= fewer
    longer = [replace(each, job_s=None if each.job_s is None else 2 * each.job_s) for each in load.waiting]
    assert wanted_workers(replace(load, waiting=longer), bounds) >= fewer


@given(slots=st.integers(1, 8), job_s=lengths, jobs=st.integers(1, 10_000))
def test_any_work_wants_a_worker_and_none_wants_none(slots: int, job_s: float | None, jobs: int) -> None:
    idle = Load([], 0, 0, slots)
    assert wanted_workers(idle, UNBOUNDED) == 0
    wanted = wanted_workers(replace(idle, waiting=[Waiting(jobs, job_s)]), UNBOUNDED)
    assert 1 <= wanted <= jobs


@given(load=loads, bounds=ranges)
def test_a_paused_queue_wants_its_busy_workers_only(load: Load, bounds: ScalingBounds) -> None:
    assert wanted_workers(replace(load, paused=True), bounds) == load.busy


def test_bounds_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValidationError, match="min_workers 3 is above max_workers 2"):
        ScalingBounds(min_workers=3, max_workers=2)
