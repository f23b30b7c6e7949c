"""Memory of a real device: batches that do not fit, models that make way for others, copies beside the work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from penstock.errors import OutOfMemory
from penstock.processors.base import Prompt
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.memory import CUDA_SHARE, budget_bytes
from penstock.workers.engine.runners import Runners
from tests.support.engine_jobs import never
from tests.support.gpu_device import Doubled, a_model, at_most, needs_cuda, probability, runs, squares
from tests.support.polling import wait_for

pytestmark = needs_cuda
GB = 10**9
SLEEP_CYCLES = 2_000_000  # a millisecond


class Hungry(nn.Module):
    """Doubles its pixels, and needs memory for it: first this much a sample, then that much beside it."""

    def __init__(self, *needs_bytes: int) -> None:
        super().__init__()
        self.needs_bytes = needs_bytes

    def forward(self, pixels: Tensor) -> Tensor:
        held = [torch.empty(len(pixels) * need, dtype=torch.uint8, device=pixels.device) for need in self.needs_bytes]
        held[-1][:1] = 0
        return pixels * 2


class Heavy(nn.Module):
    """Doubles its pixels and has a gigabyte of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weights", torch.ones(GB // 4))

    def forward(self, pixels: Tensor) -> Tensor:
        weights = self.get_buffer("weights")
        return pixels * (weights[0] + weights[-1])


@pytest.fixture
def taken_before() -> int:
    """Return what is taken of the device, such as the work space of libraries that other tests used."""
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated()


def is_free(before: int) -> None:
    """Wait until no more is taken of the device than before: the scheduler lets go after the job has its output."""
    wait_for(lambda: torch.cuda.memory_allocated() <= before, "memory of the device is held")


@pytest.fixture
def hungry() -> Iterator[BatchingEngine]:
    """Eight samples need 7.2 GB; four fit, but not beside what was made of the eight."""
    with (
        closing(BatchingEngine(Runners.of({"made": runs(partial(Hungry, 4 * GB // 10, GB // 2))}))) as engine,
        at_most(0.07),
    ):
        yield engine


def test_a_batch_that_does_not_fit_is_halved_and_nothing_of_it_stays(hungry: BatchingEngine) -> None:
    model = a_model()
    hungry.load(model, check=never)
    [prompt] = squares([1])
    assert hungry.fill(model, prompt, check=never) == 4
    before = torch.cuda.memory_allocated()
    outputs = list(hungry.run(model, squares(range(40)), check=never))
    assert [float(probability(output)[0, 0, 0]) for output in outputs] == [2.0 * value for value in range(40)]
    assert hungry.batch_sizes()["made"] <= 4
    is_free(before)
    assert not hungry.lost


def test_jobs_whose_batch_does_not_fit_succeed_without_a_warm_up(taken_before: int, hungry: BatchingEngine) -> None:
    with ThreadPoolExecutor(16) as jobs:
        done = [jobs.submit(lambda v: list(hungry.run(a_model(), squares([v]), check=never)), v) for v in range(32)]
        found = [float(probability(job.result()[0])[0, 0, 0]) for job in done]
    assert found == [2.0 * value for value in range(32)]
    is_free(taken_before)


def test_a_prompt_that_never_fits_is_its_job_s_error_and_the_next_job_succeeds(taken_before: int) -> None:
    factories = {"made": runs(partial(Hungry, 100 * GB)), "other": runs(Doubled)}
    with closing(BatchingEngine(Runners.of(factories))) as engine:
        with pytest.raises(OutOfMemory):
            list(engine.run(a_model(), squares(range(4)), check=never))
        [output] = engine.run(a_model("other"), squares([3]), check=never)
        assert probability(output)[0, 0, 0] == 6
        is_free(taken_before)


def test_a_prompt_for_whose_copy_there_is_no_room_waits_beside_the_device() -> None:
    """The device is full until the batch before is through: the copy is made when its turn comes."""
    side = 10_000
    with closing(BatchingEngine(Runners.of({"made": runs(Doubled)}))) as engine, at_most(0.025):
        outputs = list(engine.run(a_model(max_batch=1), squares(range(8), side=side), check=never))
    assert [float(probability(output)[0, -1, -1]) for output in outputs] == [2.0 * value for value in range(8)]


def test_the_model_that_was_not_used_for_the_longest_time_makes_way_and_its_memory_is_free(taken_before: int) -> None:
    names = ("one", "two", "three")
    with closing(BatchingEngine(Runners.of({name: runs(Heavy) for name in names}), memory_bytes=5 * GB // 2)) as engine:
        for name in names:
            [output] = engine.run(a_model(name), squares([3]), check=never)
            assert probability(output)[0, 0, 0] == 6
        assert engine.loaded() == {"two", "three"}
        assert torch.cuda.memory_allocated() - taken_before == pytest.approx(2 * GB, rel=0.01)
    is_free(taken_before)


def test_models_may_take_most_of_the_device() -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    assert budget_bytes() == int(CUDA_SHARE * total)
    with closing(BatchingEngine(Runners.of({"made": runs(Heavy)}))) as engine:
        for number in range(4):
            list(engine.run(a_model(revision=str(number)), squares([1]), check=never))
        assert torch.cuda.memory_allocated() > 4 * GB * 0.99


class Reused:
    """Prompts whose numbers lie in the same memory, which is poisoned as soon as the next one is drawn."""

    def __init__(self, values: Sequence[float], side: int) -> None:
        self._values, self._array = values, np.empty((1, side, side), np.float32)

    def __iter__(self) -> Iterator[Prompt]:
        for value in self._values:
            self._array[:] = value
            yield Prompt({"pixels": self._array}, cost=1)
            self._array[:] = np.nan


@pytest.mark.parametrize(("batch", "side"), [(1, 700), (4, 300), (8, 64)])
def test_copies_of_many_jobs_at_a_time_arrive_whole_and_outputs_stay_as_they_were(batch: int, side: int) -> None:
    jobs, prompts = 16, 40

    def job(engine: BatchingEngine, number: int) -> list[tuple[float, float]]:
        values = [float(number * prompts + index + 1) for index in range(prompts)]
        source = iter(Reused(values, side))
        kept = [probability(output) for output in engine.run(a_model(max_batch=batch), source, check=never)]
        # After all of them: none may have been written over by those that came later.
        return [(float(array.min()), float(array.max())) for array in kept]

    factories = {"made": runs(partial(Doubled, SLEEP_CYCLES))}
    with closing(BatchingEngine(Runners.of(factories))) as engine, ThreadPoolExecutor(jobs) as pool:
        found = list(pool.map(partial(job, engine), range(jobs)))
    expected = [2.0 * (index + 1) for index in range(jobs * prompts)]
    assert [least for job_s in found for least, _ in job_s] == expected
    assert [most for job_s in found for _, most in job_s] == expected
