"""Batches whose rate was measured: later batches of the model cost no more than the chosen one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import numpy as np
import pytest

from penstock.errors import Canceled
from penstock.processors.base import Prompt
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.fake import FakeState, load_fake
from penstock.workers.engine.runners import Runners
from tests.support.engine_jobs import WAIT_S, a_model, never, numbers, run_all

#: Seconds of a device's step, by the clock of the tests.
STEP_S = 1.0
PROMPT = Prompt({"x": np.zeros(4, np.float32)}, cost=4)


class Clock:
    """Seconds that only a device's steps let pass: a busy machine changes no measurement."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Device:
    """A device whose step takes a time by the number of its prompts; takes notes of the batches."""

    def __init__(self, clock: Clock, seconds: Callable[[int], float]) -> None:
        self.clock = clock
        self.seconds = seconds
        self.batches: list[int] = []

    def __call__(self, states: Sequence[FakeState]) -> None:
        self.batches.append(len(states))
        self.clock.now += self.seconds(len(states))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engine(clock: Clock) -> Iterator[BatchingEngine]:
    with closing(BatchingEngine(Runners.of({"fake": load_fake}), clock=clock)) as engine:
        yield engine


def test_a_device_that_large_batches_slow_gets_small_ones_from_then_on(engine: BatchingEngine, clock: Clock) -> None:
    device = Device(clock, lambda size: size**2 * STEP_S / 4)
    model = a_model(max_batch=4, on_step=device)
    assert engine.measure(model, PROMPT, 4, within_s=WAIT_S, check=never) == 1
    assert device.batches == [4, 4, 2, 2, 1, 1]
    del device.batches[:]
    assert run_all(engine, model, numbers(range(9), size=4)) == list(range(9))
    assert set(device.batches) == {1}


def test_prompts_of_less_cost_share_a_batch_of_the_chosen_cost(engine: BatchingEngine, clock: Clock) -> None:
    device = Device(clock, lambda size: size**2 * STEP_S / 4)
    model = a_model(max_batch=4, on_step=device)
    assert engine.measure(model, PROMPT, 4, within_s=WAIT_S, check=never) == 1
    del device.batches[:]
    device.seconds = lambda _: STEP_S
    assert run_all(engine, model, numbers(range(12), size=1)) == list(range(12))
    assert max(device.batches) > 1, "four of them cost as much as one of the measured prompts"


def test_a_device_with_the_same_time_for_every_batch_keeps_the_largest(engine: BatchingEngine, clock: Clock) -> None:
    device = Device(clock, lambda _: STEP_S)
    model = a_model(max_batch=4, on_step=device)
    assert engine.measure(model, PROMPT, 4, within_s=WAIT_S, check=never) == 4
    assert device.batches == [4, 4, 2, 2]


def test_without_time_nothing_is_measured(engine: BatchingEngine, clock: Clock) -> None:
    device = Device(clock, lambda size: size**2 * STEP_S)
    model = a_model(max_batch=4, on_step=device)
    assert engine.measure(model, PROMPT, 4, within_s=0, check=never) == 4
    assert device.batches == []


def test_beside_another_job_nothing_is_measured(engine: BatchingEngine, clock: Clock) -> None:
    device = Device(clock, lambda size: size**2 * STEP_S)
    model = a_model(max_batch=2, on_step=device)
    with closing(engine.run(a_model("other"), numbers(range(2)), check=never, ready=True)) as outputs:
        next(outputs)
        assert engine.measure(model, PROMPT, 2, within_s=WAIT_S, check=never) == 2
    assert engine.measure(model, PROMPT, 2, within_s=WAIT_S, check=never) == 1


def test_a_search_that_is_interrupted_changes_no_batch(engine: BatchingEngine, clock: Clock) -> None:
    device = Device(clock, lambda size: size**2 * STEP_S / 4)
    model = a_model(max_batch=4, on_step=device)

    def check() -> None:
        if len(device.batches) > 2:
            raise Canceled

    with pytest.raises(Canceled):
        engine.measure(model, PROMPT, 4, within_s=WAIT_S, check=check)
    del device.batches[:]
    assert engine.fill(model, PROMPT, check=never) == 4
    assert device.batches[-1] == 4
