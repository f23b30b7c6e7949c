"""Intervals of the device seconds to expect, from earlier jobs."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.redis.dry_runs import FEW_JOBS, RATE_JOBS, DeviceRate

seconds = st.floats(1e-3, 1e5)
sizes = st.integers(0, 10**12)


def rate_of(jobs: list[tuple[float, int]]) -> DeviceRate:
    rate = DeviceRate()
    for device_s, size_bytes in jobs:
        rate = rate.after(device_s, size_bytes)
    return rate


@given(st.lists(st.tuples(seconds, sizes), min_size=1, max_size=40), sizes)
def test_an_interval_has_a_width_and_is_at_most_fourfold(jobs: list[tuple[float, int]], size: int) -> None:
    low, high = rate_of(jobs).interval_s(size)
    assert 0 < low < high
    assert 1.2 < high / low < 4 * (1 + 1e-9)


def test_the_first_jobs_give_the_widest_interval() -> None:
    rate = rate_of([(2.0, 0)] * (FEW_JOBS - 1))
    assert rate.interval_s() == pytest.approx((1.0, 4.0))
    low, high = rate.after(2.0).interval_s()
    assert (low, high) == pytest.approx((2 / 1.1, 2 * 1.1))


def test_seconds_grow_with_the_bytes_as_they_did() -> None:
    rate = rate_of([(n * 0.5, n * 10**6) for n in (1, 4, 2, 8, 3, 6, 5, 7)])
    low, high = rate.interval_s(20 * 10**6)
    assert low < 10 < high
    assert high / low < 2


def test_jobs_of_one_size_say_nothing_of_another() -> None:
    rate = rate_of([(1.0, 1000)] * 9)
    assert rate.interval_s(1000) == rate.interval_s(10**9)


def test_what_is_known_follows_the_latest_jobs() -> None:
    rate = rate_of([(1.0, 0)] * 100 + [(10.0, 0)] * 5 * RATE_JOBS)
    low, high = rate.interval_s()
    assert low < 10 < high


@pytest.mark.parametrize("noise", [0.05, 0.2, 0.35])
@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_four_of_five_jobs_lie_in_their_interval(noise: float, power: float) -> None:
    draws, inside, count = random.Random(7), 0, 2000
    rate = DeviceRate()
    for number in range(count + RATE_JOBS):
        size = int(math.exp(draws.uniform(10, 16)))
        device_s = 0.01 * size**power * math.exp(draws.gauss(0, noise))
        if number >= RATE_JOBS:
            low, high = rate.interval_s(size)
            inside += low <= device_s <= high
        rate = rate.after(device_s, size)
    assert inside / count >= 0.8
