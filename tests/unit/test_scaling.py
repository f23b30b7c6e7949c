"""The number of workers that a queue wants: enough for its work, never fewer than are busy, none for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from penstock.scaling import Growth, Load, ScalingBounds, Waiting, by_size, wanted_workers

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


MB = 1_000_000
sizes = st.integers(1, 10**11)
#: Jobs as (bytes of their media, seconds, units).
pasts = st.lists(st.tuples(sizes, st.floats(0, 1e4), st.integers(0, 500)), min_size=1, max_size=30)


def learned(past: Sequence[tuple[int, float, int]]) -> Growth:
    return reduce(lambda known, job: known.after(*job), past, Growth())


def test_scenes_count_by_their_size() -> None:
    """The seconds of a scene are those of opening it and of its tiles; the mean would be 27 s for each."""
    scenes = [(tiles * MB, 2 + 0.5 * tiles, tiles) for tiles in (4, 9, 100, 25, 49, 4, 200, 9)]
    growth = learned(scenes)
    for tiles in (1, 4, 100, 400):
        assert growth.expected_s(tiles * MB) == pytest.approx(2 + 0.5 * tiles, abs=0.01)
    large, small = by_size(4, 27, growth, [400 * MB] * 4), by_size(4, 27, growth, [MB] * 4)
    assert wanted_workers(Load(large, 0, 0, 1), ScalingBounds()) == 4
    assert wanted_workers(Load(small, 0, 0, 1), ScalingBounds()) == 1


def test_photographs_count_alike_whatever_their_size() -> None:
    growth = learned([(size, 0.2, 1) for size in (50_000, 4 * MB, 200_000, 12 * MB)])
    assert growth.expected_s(50_000) == pytest.approx(0.2)
    assert growth.expected_s(500 * MB) == pytest.approx(0.2)


@pytest.mark.parametrize(("units", "expected_s"), [(1, 0.4), (100, 0.4 * (0.01 + 0.99 * 1000))])
def test_one_scene_tells_of_larger_ones_and_one_photograph_does_not(units: int, expected_s: float) -> None:
    assert Growth().after(MB, 0.4, units).expected_s(1000 * MB) == pytest.approx(expected_s)


@given(past=pasts, size=sizes, larger=sizes)
def test_a_job_takes_no_less_for_more_bytes_and_never_more_than_its_share_of_them(
    past: list[tuple[int, float, int]], size: int, larger: int
) -> None:
    growth = learned(past)
    size, larger = sorted((size, larger))
    assert 0 <= growth.share <= 1
    assert 0 <= growth.expected_s(size) <= growth.expected_s(larger)
    assert growth.expected_s(larger) <= max(1, larger / growth.size) * growth.job_s * (1 + 1e-9)


@given(past=pasts, part=st.floats(0.1, 10))
def test_units_of_bytes_do_not_matter(past: list[tuple[int, float, int]], part: float) -> None:
    growth, scaled = learned(past), reduce(lambda known, job: known.after(job[0] * part, *job[1:]), past, Growth())
    assert scaled.expected_s(1000 * part) == pytest.approx(growth.expected_s(1000), rel=1e-3, abs=1e-3)


@given(past=st.lists(st.tuples(st.floats(1, 1e9), st.floats(0, 1e4)), min_size=2, max_size=10))
def test_the_first_jobs_give_the_mean_and_the_line_of_least_squares(past: list[tuple[float, float]]) -> None:
    growth = reduce(lambda known, job: known.after(*job, 1), past, Growth())
    bytes_, took_s = np.array(past).T
    assert growth.size == pytest.approx(bytes_.mean())
    assert growth.job_s == pytest.approx(took_s.mean(), abs=1e-9)
    assert growth.variance == pytest.approx(bytes_.var(), rel=1e-6, abs=1e-6 * growth.size**2)
    assert growth.covariance == pytest.approx(
        np.cov(bytes_, took_s, bias=True)[0, 1], rel=1e-6, abs=1e-6 * growth.size * (growth.job_s + 1)
    )


@given(
    jobs=st.integers(1, 10_000), past=pasts, looked=st.lists(st.none() | sizes, max_size=50), mean_s=st.floats(0, 1e4)
)
def test_the_jobs_that_were_looked_at_stand_for_all(
    jobs: int, past: list[tuple[int, float, int]], looked: list[int | None], mean_s: float
) -> None:
    rows = by_size(jobs, mean_s, learned(past), looked)
    assert sum(row.jobs for row in rows) == pytest.approx(jobs)
    assert by_size(jobs, mean_s, None, looked) == (Waiting(jobs, mean_s),)
    whole = wanted_workers(Load(rows, 0, 0, 1), UNBOUNDED)
    assert 1 <= whole <= jobs + 1


@given(past=pasts, looked=st.lists(sizes, min_size=1, max_size=20), more=sizes, bounds=ranges)
def test_another_job_and_a_larger_one_never_want_fewer_workers(
    past: list[tuple[int, float, int]], looked: list[int], more: int, bounds: ScalingBounds
) -> None:
    growth = learned(past)

    def wanted(*found: int) -> int:
        return wanted_workers(Load(by_size(len(found), 1, growth, found), 0, 0, 2), bounds)

    assert wanted(*looked, more) >= wanted(*looked)
    assert wanted(*looked[1:], looked[0] + more) >= wanted(*looked)
