"""Batches under way in a process, which the tests play: the engine begins the next ones and acts on the answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from penstock.errors import Canceled, DeviceLost, InvalidInput, ModelProcessEnded, OutOfMemory, PenstockError
from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Done, Runner, Step, Stepped
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from tests.support.engine_jobs import WAIT_S, a_model, never, numbers, run_all
from tests.support.polling import wait_for


class Begun:
    """A batch that the process has."""

    def __init__(self, states: Sequence[Prompt], wanted: Callable[[], bool]) -> None:
        self.prompts, self.wanted = list(states), wanted
        self.answer: Future[Stepped] = Future()

    @property
    def values(self) -> list[float]:
        return [float(prompt.data["x"][0]) for prompt in self.prompts]

    def finish(self, seconds: float = 0.001, **failed: PenstockError) -> None:
        steps: list[Step | PenstockError] = [
            failed.get(f"at_{int(value)}") or Done(Output(dict(prompt.data)))
            for value, prompt in zip(self.values, self.prompts, strict=True)
        ]
        self.answer.set_result(Stepped(steps, seconds))


class Process:
    """A runner whose batches end when the test says so, or at once by `act`."""

    max_batch, memory_bytes = 4, 0

    def __init__(self, act: Callable[[Begun], None] | None = None) -> None:
        self.batches: list[Begun] = []
        self.act = act
        self._came = threading.Condition()

    def bucket(self, prompt: Prompt) -> Hashable:  # noqa: ARG002
        return "all"

    def admit(self, prompt: Prompt) -> Prompt:
        return prompt

    def begin(self, states: Sequence[Prompt], wanted: Callable[[], bool]) -> Future[Stepped]:
        batch = Begun(states, wanted)
        with self._came:
            self.batches.append(batch)
            self._came.notify_all()
        if self.act is not None:
            self.act(batch)
        return batch.answer

    def step(self, states: Sequence[Prompt]) -> Sequence[Step]:  # noqa: ARG002
        raise AssertionError("batches begin")

    def close(self) -> None:
        """Nothing to free."""

    def wait(self, count: int) -> Begun:
        """Return the batch of this number once it has come."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.batches) >= count, WAIT_S)
            return self.batches[count - 1]


Start = Callable[[Process], BatchingEngine]


@pytest.fixture
def start() -> Iterator[Start]:
    engines = list[BatchingEngine]()

    def started(process: Process) -> BatchingEngine:
        def load(_: Model) -> Runner:
            return process

        engines.append(BatchingEngine(Runners.of({"fake": load})))
        return engines[-1]

    yield started
    for engine in engines:
        engine.close()


@pytest.fixture
def jobs() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(12) as pool:
        yield pool


def test_outputs_come_in_order_while_batches_are_under_way(start: Start) -> None:
    assert run_all(start(Process(Begun.finish)), a_model(max_batch=4), numbers(range(50))) == list(range(50))


def test_a_second_full_batch_begins_beside_the_first_and_no_third(start: Start, jobs: ThreadPoolExecutor) -> None:
    process = Process()
    job = jobs.submit(run_all, start(process), a_model(max_batch=4), numbers(range(12)))
    first = process.wait(1)
    second = process.wait(2)
    assert len(second.values) == 4
    assert len(process.batches) == 2
    first.finish()
    process.wait(3)
    for number in (2, 3):
        process.wait(number).finish()
    if len(first.values) < 4:
        process.wait(4).finish()
    assert job.result(WAIT_S) == list(range(12))


def test_prompts_that_do_not_fill_a_batch_wait_for_the_first_one(start: Start, jobs: ThreadPoolExecutor) -> None:
    process = Process()
    engine = start(process)
    one = jobs.submit(run_all, engine, a_model(max_batch=4), numbers([0]))
    first = process.wait(1)
    others = [jobs.submit(run_all, engine, a_model(max_batch=4), numbers([value])) for value in (1, 2)]
    wait_for(lambda: len(engine._runs) == 3, "the jobs do not come")
    assert len(process.batches) == 1
    process.act = Begun.finish
    first.finish()
    assert [job.result(WAIT_S) for job in (one, *others)] == [[0], [1], [2]]


def test_the_seconds_of_the_process_are_charged_to_the_jobs(start: Start) -> None:
    charged: list[float] = []
    engine = start(Process(lambda batch: batch.finish(2.0)))
    list(engine.run(a_model(), numbers([1]), check=never, on_device=charged.append))
    assert charged == [2.0]


def test_a_batch_without_room_is_halved_and_later_ones_are_smaller(start: Start) -> None:
    def act(batch: Begun) -> None:
        if len(batch.values) > 2:
            batch.answer.set_exception(OutOfMemory())
        else:
            batch.finish()

    process = Process(act)
    engine = start(process)
    assert run_all(engine, a_model(max_batch=4), numbers(range(20))) == list(range(20))
    seen = len(process.batches)
    assert run_all(engine, a_model(max_batch=4), numbers(range(20))) == list(range(20))
    assert max(len(batch.values) for batch in process.batches[seen:]) <= 2


def test_after_the_end_of_the_process_each_prompt_runs_alone(start: Start) -> None:
    def act(batch: Begun) -> None:
        if 3 in batch.values:
            batch.answer.set_exception(ModelProcessEnded())
        else:
            batch.finish()

    process = Process(act)
    engine = start(process)
    with pytest.raises(ModelProcessEnded):
        list(engine.run(a_model(max_batch=4), numbers([3, 4, 5, 6]), check=never, ready=True))
    assert [batch.values for batch in process.batches] == [[3, 4, 5, 6], [3], [4], [5], [6]]
    assert run_all(engine, a_model(max_batch=4), numbers([7])) == [7]
    assert not engine.lost


def test_an_error_of_one_prompt_ends_its_job_alone(start: Start, jobs: ThreadPoolExecutor) -> None:
    process = Process()
    engine = start(process)
    good, bad = (jobs.submit(run_all, engine, a_model(max_batch=4), numbers([value])) for value in (1, 2))
    while not (good.done() and bad.done()):
        for batch in process.batches:
            if not batch.answer.done():
                batch.finish(at_2=InvalidInput("too large"))
    assert good.result() == [1]
    with pytest.raises(InvalidInput, match="too large"):
        bad.result()


def test_nobody_wants_a_batch_whose_jobs_have_ended(start: Start, jobs: ThreadPoolExecutor) -> None:
    process, stop = Process(), threading.Event()
    engine = start(process)

    def check() -> None:
        if stop.is_set():
            raise Canceled

    job: Future[Any] = jobs.submit(lambda: list(engine.run(a_model(), numbers([1]), check=check)))
    batch = process.wait(1)
    assert batch.wanted()
    stop.set()
    with pytest.raises(Canceled):
        job.result(WAIT_S)
    assert not batch.wanted()
    batch.finish()
    following = jobs.submit(run_all, engine, a_model(), numbers([2]))
    process.wait(2).finish()
    assert following.result(WAIT_S) == [2]


def test_a_device_that_cannot_be_used_again_is_lost(start: Start) -> None:
    process = Process(lambda batch: batch.answer.set_exception(DeviceLost("gone")))
    engine = start(process)
    with pytest.raises(DeviceLost):
        run_all(engine, a_model(), numbers([1]))
    assert engine.lost


def test_an_engine_ends_while_batches_are_under_way(jobs: ThreadPoolExecutor) -> None:
    process = Process()

    def load(_: Model) -> Runner:
        return process

    with closing(BatchingEngine(Runners.of({"fake": load}))) as engine:
        job = jobs.submit(run_all, engine, a_model(), numbers([1]))
        process.wait(1)
    with pytest.raises(PenstockError):
        job.result(WAIT_S)
