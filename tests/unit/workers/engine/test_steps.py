"""The share of a device's time: over the last minute, whatever the readings' distances."""

from __future__ import annotations

import pytest

from penstock.workers.engine.steps import WINDOW_S, DeviceTime


def worked(*batches: tuple[float, float]) -> DeviceTime:
    time = DeviceTime(at=0.0)
    for begin, end in batches:
        time.begin(at=begin)
        time.end(at=end)
    return time


def test_a_device_without_batches_has_a_share_of_zero() -> None:
    assert worked().share(at=10) == 0
    assert worked().share(at=0) == 0


def test_the_share_is_that_of_all_batches() -> None:
    assert worked((1, 2), (5, 7)).share(at=10) == pytest.approx(0.3)


def test_a_batch_that_has_not_ended_counts() -> None:
    time = worked()
    time.begin(at=4)
    assert time.share(at=10) == pytest.approx(0.6)
    time.end(at=12)
    assert time.share(at=16) == pytest.approx(0.5)


def test_only_the_last_minute_counts() -> None:
    time = worked((0, WINDOW_S))
    for at in (WINDOW_S, 2 * WINDOW_S, 3 * WINDOW_S):
        last = time.share(at=at)
    assert last == 0


def test_readings_in_quick_succession_do_not_shorten_the_window() -> None:
    time = worked((0, 30))
    shares = [time.share(at=at) for at in (58, 59, 59.5, 60)]
    assert shares == pytest.approx([30 / 58, 30 / 59, 30 / 59.5, 0.5])


def test_a_long_life_keeps_few_readings() -> None:
    time = worked()
    for second in range(10_000):
        time.share(at=second)
    assert len(time._readings) <= WINDOW_S + 2
