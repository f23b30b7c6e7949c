"""Runners of many steps answer in between."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from penstock.errors import InvalidInput, ProcessorFailed
from penstock.processors.base import Output, Prompt
from penstock.workers.engine import scheduler
from penstock.workers.engine.base import Continue, Done, Step
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.fake import FakeRunner, FakeState, load_fake
from penstock.workers.engine.residency import Resident
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.runs import Item, Run, Window
from tests.support.engine_jobs import WAIT_S, a_model, never, numbers, run_all, values


@pytest.fixture
def engine() -> Iterator[BatchingEngine]:
    with closing(BatchingEngine(Runners.of({"fake": load_fake}))) as engine:
        yield engine


class Permits:
    """Lets the device take one step per permit; `waiting` tells that all steps before were delivered."""

    def __init__(self) -> None:
        self._permits, self._waiting = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, states: Sequence[FakeState]) -> None:  # noqa: ARG002
        self._waiting.release()
        assert self._permits.acquire(timeout=WAIT_S)

    def allow(self, steps: int) -> None:
        for _ in range(steps):
            assert self._waiting.acquire(timeout=WAIT_S)
            self._permits.release()

    def wait(self) -> None:
        assert self._waiting.acquire(timeout=WAIT_S)
        self._waiting.release()


def test_of_partial_outputs_that_nobody_took_only_the_latest_comes(engine: BatchingEngine) -> None:
    permits = Permits()
    model = a_model(steps=5, partials=True, on_step=permits)
    outputs = engine.run(model, numbers([7]), check=never)
    allowing = threading.Thread(target=permits.allow, args=(1,))
    allowing.start()
    first = next(outputs)
    allowing.join()
    assert (first.partial, first.data["steps_left"]) == (True, 4)
    permits.allow(2)
    permits.wait()
    second = next(outputs)
    assert (second.partial, second.data["steps_left"]) == (True, 2)
    permits.allow(2)
    last = list(outputs)[-1]
    assert not last.partial
    assert last.data["x"].tolist() == [7]


class AsLongAsItSays(FakeRunner):
    """A prompt takes as many steps as its number."""

    def admit(self, prompt: Prompt) -> FakeState:
        return replace(super().admit(prompt), steps_left=int(prompt.data["x"][0]))


def test_partial_outputs_come_before_their_own_prompt_s_output_and_after_those_before() -> None:
    lengths = [3, 1, 9, 2, 2, 7, 1, 5] * 3
    steps, taken = itertools.count(), threading.Event()

    def wait_for_the_first(_: Sequence[FakeState]) -> None:
        assert next(steps) == 0 or taken.wait(WAIT_S)

    runner = AsLongAsItSays(max_batch=4, partials=True, on_step=wait_for_the_first)
    index, left, partials = 0, 10, 0
    with closing(BatchingEngine(Runners.of({"fake": lambda _: runner}))) as engine:
        for output in engine.run(a_model(), numbers(lengths), check=never):
            taken.set()
            assert int(output.data["x"][0]) == lengths[index]
            if output.partial:
                assert output.data["steps_left"] < left
                left, partials = output.data["steps_left"], partials + 1
            else:
                index, left = index + 1, 10
    assert index == len(lengths)
    assert partials


def test_a_partial_output_counts_against_what_a_run_may_hold() -> None:
    lock = threading.Lock()
    resident = Resident(a_model(), FakeRunner(), load_s=0)
    run = Run(resident, Window(8, 1000), lock)
    (prompt,) = numbers([1])
    item = Item.of(run, prompt)
    with lock:
        run.add(item)
        assert run.wants_prompts
        run.resume(item, None, Output({"image": np.zeros(1000, np.uint8)}, partial=True))
        assert not run.wants_prompts
        run.answer(item, Output({"label": 1}))
        assert run.wants_prompts


def answered(run: Run, count: int) -> None:
    """Add prompts to a run, and their answers, which are there together."""
    items = [Item.of(run, prompt) for prompt in numbers(range(count))]
    with run.lock:
        for item in items:
            run.add(item)
        for item in items:
            run.answer(item, Output({"x": np.full(1000, item.index)}))


def test_a_run_keeps_no_output_that_it_yielded() -> None:
    run = Run(Resident(a_model(), FakeRunner(), load_s=0), Window(8, 10**6), threading.Lock())
    answered(run, 3)
    outputs = run.take(never)
    for _ in range(3):
        array = weakref.ref(next(outputs).data["x"])
        assert array() is None


def test_a_run_is_over_with_its_last_output(engine: BatchingEngine) -> None:
    outputs = engine.run(a_model(), numbers([1, 2]), check=never, ready=True)
    assert [(float(next(outputs).data["x"][0]), len(engine._runs)) for _ in range(2)] == [(1, 1), (2, 0)]


def test_the_ready_prompts_of_a_job_share_a_batch_though_the_device_is_idle(engine: BatchingEngine) -> None:
    sizes: list[int] = []
    model = a_model(max_batch=4)
    outputs = engine.run(model, numbers(range(4)), check=never, on_batch=lambda size, _: sizes.append(size), ready=True)
    assert [float(output.data["x"][0]) for output in outputs] == [0, 1, 2, 3]
    assert sizes == [4]


def test_the_error_of_a_ready_prompt_is_raised_and_nothing_is_computed(engine: BatchingEngine) -> None:
    batches: list[list[float]] = []

    def prompts() -> Iterator[Prompt]:
        yield from numbers([1])
        raise InvalidInput("no second one")

    model = a_model(on_step=lambda states: batches.append(values(states)))
    with pytest.raises(InvalidInput, match="no second one"):
        next(engine.run(model, prompts(), check=never, ready=True))
    assert run_all(engine, a_model("other"), numbers([3])) == [3]
    assert not batches


@pytest.mark.parametrize("bounds", [{"max_batch": 4}, {"max_batch": 8, "max_batch_cost": 4}])
def test_a_batch_that_collects_goes_when_it_is_full_or_no_more_prompts_come(
    engine: BatchingEngine, monkeypatch: pytest.MonkeyPatch, bounds: dict[str, int]
) -> None:
    monkeypatch.setattr(scheduler, "COLLECT_S", 100 * WAIT_S)
    permits, batches = Permits(), list[list[float]]()

    def on_step(states: Sequence[FakeState]) -> None:
        batches.append(values(states))
        permits(states)

    may_come = [threading.Event() for _ in range(8)]
    asked = [threading.Event() for _ in range(8)]

    def prompts() -> Iterator[Prompt]:
        for number, prompt in enumerate(numbers(range(8))):
            asked[number].set()
            assert may_come[number].wait(WAIT_S)
            yield prompt

    with ThreadPoolExecutor(1) as pool:
        outputs = engine.run(a_model(**bounds, on_step=on_step), prompts(), check=never)
        first = pool.submit(next, outputs)
        may_come[0].set()
        permits.wait()
        may_come[1].set()
        assert asked[2].wait(WAIT_S)  # one prompt waits at the end of the first batch: the next one collects
        permits.allow(1)
        assert first.result(WAIT_S).data["x"][0] == 0
        for event in may_come[2:5]:
            event.set()
        permits.wait()  # it is full, and goes
        for event in may_come[5:]:
            event.set()
        others = pool.submit(list, outputs)
        permits.allow(2)
        assert [output.data["x"][0] for output in others.result(WAIT_S)] == list(range(1, 8))
    assert batches == [[0], [1, 2, 3, 4], [5, 6, 7]]


@pytest.mark.parametrize(
    "step",
    [
        Done(Output({}, partial=True)),
        Continue(None, Output({})),
        Continue(None, {"x": 1}),  # type: ignore[arg-type]
        Done({"x": 1}),  # type: ignore[arg-type]
        None,
    ],
)
def test_an_answer_that_is_none_fails_its_job_and_not_the_engine(step: Any) -> None:
    class Odd(FakeRunner):
        def _advance(self, state: FakeState) -> Step:
            return step if state.prompt.data["x"][0] == 13 else super()._advance(state)  # type: ignore[no-any-return]

    with closing(BatchingEngine(Runners.of({"fake": lambda _: Odd(max_batch=2)}))) as engine:
        with pytest.raises(ProcessorFailed, match="did not answer every prompt"):
            run_all(engine, a_model(), numbers([1, 13]))
        assert run_all(engine, a_model(), numbers([1, 2])) == [1, 2]


def test_a_run_is_told_how_much_of_its_prompts_each_step_did(engine: BatchingEngine) -> None:
    model, further = a_model(steps=4, max_batch=2), []
    outputs = engine.run(model, numbers([1, 2, 3]), check=never, on_batch=lambda _, more: further.append(more))
    assert len(list(outputs)) == 3
    assert sum(further) == pytest.approx(3)
    assert set(further) <= {0.25, 0.5}
