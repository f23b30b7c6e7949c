"""Jobs are split once, into balanced ranges; parts are computed where the job finds them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from penstock.errors import ProcessorFailed, RedisUnavailable
from penstock.jobs import Claim, JobKey, Part, Submission
from penstock.models import Model
from penstock.processors.base import Divisible
from penstock.storage.redis.parts import Capacity
from penstock.storage.redis.records import Command
from penstock.workers.engine.device_class import device_class
from penstock.workers.splitting import JobSplit, PartLimits, Splitter, balanced, divide, division_digest, part_count

KEY = JobKey("default", "a")
MODEL = Model(name="m", title="M", runner="fake", processor="p", source="-", revision="1", device="cpu")
WORK = Divisible("d", tuple((at, 10, 10) for at in range(8)))
CLAIM = Claim(Submission(KEY, "m", "q", {}, "f"), attempt=1, crashes=0, fence=1, claimed_s=0.0, lease_s=30.0)


class Answers:
    """A job store that answers one question."""

    def __init__(self, capacity: Capacity | None) -> None:
        self.capacity, self.asked = capacity, 0

    def run(self, command: Command[Any]) -> Any:
        self.asked += 1
        assert command.args["op"] == "capacity"
        if self.capacity is None:
            raise RedisUnavailable
        return self.capacity


IDLE = Capacity(4, 1, 0, False)


def splitter(capacity: Capacity | None = IDLE, max_parts: int = 16) -> Splitter:
    return Splitter(Answers(capacity), PartLimits(max_parts, 10))


def test_idle_workers_share_the_job() -> None:
    with capture_logs() as lines, pytest.raises(JobSplit) as found:
        splitter().decide(CLAIM, MODEL, WORK)
    assert [(line["event"], line["among"]) for line in lines] == [("job.split_decided", 4)]
    assert len(found.value.division.ranges) == 4
    assert found.value.division.kind == device_class(MODEL)


@pytest.mark.parametrize(
    ("store", "claim", "work"),
    [
        (splitter(), CLAIM, None),  # a processor that cannot share
        (splitter(Capacity(1, 1, 0, False)), CLAIM, WORK),
        (splitter(None), CLAIM, WORK),  # Redis does not answer
        (splitter(max_parts=1), CLAIM, WORK),
        (splitter(), replace(CLAIM, parts=4), WORK),  # it was divided before
        (splitter(), CLAIM, Divisible("d", ((0, 10, 10), (1, 10, 9)))),  # too small
    ],
)
def test_other_jobs_stay_whole(store: Splitter, claim: Claim, work: Divisible | None) -> None:
    with capture_logs() as lines:
        store.decide(claim, MODEL, work)
    assert not [line for line in lines if line["event"] == "job.split_decided"]


def test_a_part_is_computed_where_the_job_finds_it() -> None:
    digest = division_digest("d", device_class(MODEL))
    splitter().decide(replace(CLAIM, part=Part(KEY, digest, 0, 3)), MODEL, WORK)
    with pytest.raises(ProcessorFailed, match="another result"):
        splitter().decide(replace(CLAIM, part=Part(KEY, division_digest("d", "cuda-x"), 0, 3)), MODEL, WORK)
    with pytest.raises(ProcessorFailed, match="another result"):
        splitter().decide(replace(CLAIM, part=Part(KEY, digest, 0, 3)), MODEL, replace(WORK, digest="e"))


LIMITS = PartLimits(max_parts=16, min_prompts=10)
weights_of_strips = st.lists(st.integers(0, 50), max_size=60)


@given(weights_of_strips, st.integers(1, 20))
def test_ranges_cover_everything_once_and_in_order(weights: list[int], count: int) -> None:
    ranges = balanced(weights, count)
    assert len(ranges) <= count
    assert [at for start, end in ranges for at in range(start, end)] == list(range(len(weights)))
    assert all(before[1] == after[0] for before, after in pairwise(ranges))


@given(weights_of_strips, st.integers(1, 20))
def test_the_heaviest_range_is_close_to_the_mean(weights: list[int], count: int) -> None:
    heaviest = max((sum(weights[start:end]) for start, end in balanced(weights, count)), default=0)
    assert heaviest <= sum(weights) / count + max(weights, default=0)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=7), st.integers(1, 4))
def test_no_other_ranges_are_lighter(weights: list[int], count: int) -> None:
    def lightest(rest: list[int], left: int) -> int:
        if left == 1:
            return sum(rest)
        return min(max(sum(rest[:cut]), lightest(rest[cut:], left - 1)) for cut in range(len(rest) + 1))

    assert max(sum(weights[start:end]) for start, end in balanced(weights, count)) == lightest(weights, count)


@given(weights_of_strips, st.integers(1, 20), st.sets(st.integers(0, 59)))
def test_a_division_holds_all_work_and_no_empty_part(weights: list[int], count: int, saved: set[int]) -> None:
    units = tuple((3 + 2 * at, weight, 0 if at in saved else weight) for at, weight in enumerate(weights))
    division = divide(Divisible("d", units), count, "cpu-avx2")
    if division is None:
        return
    parts = division.ranges
    assert 2 <= len(parts) <= count
    assert all(part.prompts > 0 and part.first <= part.last for part in parts)
    assert sum(part.prompts for part in parts) == sum(left for _, _, left in units)
    covered = {number for part in parts for number, *_ in units if part.first <= number <= part.last}
    assert {number for number, _, left in units if left} <= covered
    assert all(before.last < after.first for before, after in pairwise(parts))


def test_the_same_work_is_divided_alike_whatever_is_saved() -> None:
    work = Divisible("d", tuple((at, 15, 15) for at in range(15)))
    assert divide(work, 4, "cpu-avx2") == divide(work, 4, "cpu-avx2")
    division = divide(work, 4, "cpu-avx2")
    assert division is not None
    assert [part.prompts for part in division.ranges] == [60, 60, 60, 45]
    half = divide(Divisible("d", tuple((at, 15, 15 * (at > 5)) for at in range(15))), 4, "cpu-avx2")
    assert half is not None
    assert [(part.first, part.last) for part in half.ranges] == [(4, 7), (8, 11), (12, 14)]
    assert [part.prompts for part in half.ranges] == [30, 60, 45]


def test_a_division_names_the_kind_of_machine() -> None:
    digests = {division_digest("d", kind) for kind in ("cpu-avx2", "cpu-avx512f", "cuda-nvidia-h100")}
    assert len(digests) == 3


@given(
    st.integers(0, 10_000), st.integers(0, 30), st.integers(0, 30), st.integers(0, 30), st.booleans(),
    st.integers(1, 40), st.integers(1, 200),
)  # fmt: skip
def test_parts_are_large_enough_and_no_more_than_workers(
    prompts: int, workers: int, busy: int, waiting: int, grows: bool, most: int, least: int
) -> None:
    count = part_count(prompts, Capacity(workers, busy, waiting, grows), PartLimits(most, least))
    assert 1 <= count <= most
    assert count == 1 or count * least <= prompts
    assert count <= max(1, most - waiting if grows else workers - waiting)


@pytest.mark.parametrize(
    ("capacity", "count"),
    [
        (Capacity(1, 1, 0, False), 1),  # nobody else
        (Capacity(4, 1, 0, False), 4),
        (Capacity(4, 3, 0, False), 2),  # the others have jobs
        (Capacity(4, 1, 2, False), 2),  # two of the others will have
        (Capacity(4, 1, 9, False), 1),
        (Capacity(1, 1, 0, True), 16),  # a driver starts workers
        (Capacity(1, 1, 6, True), 10),  # of which jobs that wait will have six
        (Capacity(1, 1, 40, True), 1),
        (Capacity(0, 0, 0, False), 1),  # nobody has reported yet
    ],
)
def test_idle_workers_share_a_job(capacity: Capacity, count: int) -> None:
    assert part_count(1000, capacity, LIMITS) == count


def test_an_operator_may_know_of_workers_that_will_come() -> None:
    assert part_count(1000, Capacity(1, 1, 9, False), PartLimits(16, 10, always=True)) == 16


def test_small_jobs_stay_whole() -> None:
    assert part_count(19, Capacity(4, 1, 0, False), LIMITS) == 1
    assert part_count(20, Capacity(4, 1, 0, False), LIMITS) == 2
    assert part_count(1000, Capacity(4, 1, 0, True), PartLimits(1, 10)) == 1
