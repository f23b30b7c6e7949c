from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from penstock.errors import (
    Canceled,
    DeviceLost,
    Drained,
    Fenced,
    InvalidInput,
    ModelUnavailable,
    OutOfMemory,
    ProcessorFailed,
)
from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.processors.numbers import as_floats
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.fake import FakeRunner, FakeState, load_fake
from penstock.workers.engine.runners import Runners
from tests.support.engine_jobs import WAIT_S, Job, Source, Steps, a_model, never, numbers, run_all
from tests.support.numbers import numbers_prompt
from tests.support.polling import wait_for


@pytest.fixture
def engine() -> Iterator[BatchingEngine]:
    with closing(BatchingEngine(Runners.of({"fake": load_fake}))) as engine:
        yield engine


@pytest.fixture
def jobs() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def test_outputs_come_in_the_order_of_the_prompts(engine: BatchingEngine) -> None:
    assert run_all(engine, a_model(max_batch=4), numbers(range(50))) == list(range(50))


def test_a_job_without_prompts_ends_at_once(engine: BatchingEngine) -> None:
    assert run_all(engine, a_model(), numbers([])) == []


def test_prompts_of_several_shapes_keep_their_order(engine: BatchingEngine) -> None:
    prompts = [Prompt({"x": np.full(1 + i % 3, i, np.float32)}) for i in range(30)]
    assert run_all(engine, a_model(max_batch=4), iter(prompts)) == list(range(30))


def test_two_jobs_share_a_batch_and_a_large_one_does_not_starve_a_small_one(
    engine: BatchingEngine, jobs: ThreadPoolExecutor
) -> None:
    steps = Steps()
    model = a_model(max_batch=4, on_step=steps)
    large = Job(jobs, engine, model, Source(range(500)))
    assert steps.started.wait(WAIT_S)
    one = Source([-1])
    small = Job(jobs, engine, model, one)
    assert one.drawn.wait(WAIT_S)
    steps.go.set()
    assert small.outputs() == [-1]
    assert large.outputs() == list(range(500))
    assert -1 in steps.batches[1]
    assert len(steps.batches[1]) == 4


def test_a_job_is_told_how_many_prompts_shared_its_batches(engine: BatchingEngine, jobs: ThreadPoolExecutor) -> None:
    steps = Steps()
    model = a_model(max_batch=4, on_step=steps)
    first = Job(jobs, engine, model, Source([0]))
    assert steps.started.wait(WAIT_S)
    shared: list[int] = []
    source = Source([1, 2])
    second = jobs.submit(
        lambda: list(engine.run(model, iter(source), check=never, on_batch=lambda prompts, _: shared.append(prompts)))
    )
    assert source.drawn.wait(WAIT_S)
    third = Job(jobs, engine, model, other := Source([3]))
    assert other.drawn.wait(WAIT_S)
    steps.go.set()
    assert len(second.result(WAIT_S)) == 2
    assert (first.outputs(), third.outputs()) == ([0], [3])
    assert shared == [len(batch) for batch in steps.batches if {1, 2} & set(batch)]
    assert max(shared) > 1


def test_the_devices_time_is_shared_out_by_the_costs_of_the_prompts(
    engine: BatchingEngine, jobs: ThreadPoolExecutor
) -> None:
    steps = Steps()
    model = a_model(max_batch=4, on_step=steps)
    gate = Job(jobs, engine, model, Source([0]))
    assert steps.started.wait(WAIT_S)
    took: dict[int, list[float]] = {1: [], 3: []}

    def run(cost: int, drawn: threading.Event) -> list[Output]:
        def prompts() -> Iterator[Prompt]:
            yield Prompt({"x": np.full(1, cost, np.float32)}, cost=cost)
            drawn.set()

        return list(engine.run(model, prompts(), check=never, on_device=took[cost].append))

    drawn = {cost: threading.Event() for cost in took}
    others = [jobs.submit(run, cost, event) for cost, event in drawn.items()]
    assert all(event.wait(WAIT_S) for event in drawn.values())
    steps.go.set()
    assert [len(other.result(WAIT_S)) for other in others] == [1, 1]
    assert gate.outputs() == [0]
    assert [len(batch) for batch in steps.batches] == [1, 2]
    [[cheap_s], [dear_s]] = took.values()
    assert cheap_s > 0
    assert dear_s == pytest.approx(3 * cheap_s)


def test_a_step_that_fails_took_the_device_too(engine: BatchingEngine) -> None:
    def fail(_: Sequence[FakeState]) -> None:
        raise ProcessorFailed("no")

    took: list[float] = []
    with pytest.raises(ProcessorFailed):
        list(engine.run(a_model(on_step=fail), numbers([1]), check=never, on_device=took.append))
    assert len(took) == 1
    assert took[0] > 0


def test_jobs_take_turns_where_batches_hold_one_prompt(engine: BatchingEngine, jobs: ThreadPoolExecutor) -> None:
    steps = Steps()
    model = a_model(on_step=steps)
    gate = Job(jobs, engine, model, Source([0]))
    assert steps.started.wait(WAIT_S)
    sources = [Source([10, 11, 12]), Source([20, 21])]
    others = [Job(jobs, engine, model, source) for source in sources]
    assert all(source.drawn.wait(WAIT_S) for source in sources)
    steps.go.set()
    assert [job.outputs() for job in (gate, *others)] == [[0], [10, 11, 12], [20, 21]]
    first = [batch[0] // 10 for batch in steps.batches[1:5]]
    assert first in ([1, 2, 1, 2], [2, 1, 2, 1])


def test_different_shapes_and_models_never_share_a_batch(engine: BatchingEngine, jobs: ThreadPoolExecutor) -> None:
    steps = Steps()
    gate = Job(jobs, engine, a_model("gate", on_step=steps), Source([0]))
    assert steps.started.wait(WAIT_S)
    models = [a_model("one", max_batch=8, on_step=steps), a_model("two", max_batch=8, on_step=steps)]
    sources = [Source([10, 11]), Source([20, 21]), Source([30, 31], size=2)]
    others = [Job(jobs, engine, models[i], source) for i, source in zip((0, 1, 0), sources, strict=True)]
    assert all(source.drawn.wait(WAIT_S) for source in sources)
    steps.go.set()
    assert [job.outputs() for job in (gate, *others)] == [[0], [10, 11], [20, 21], [30, 31]]
    assert sorted(steps.batches[1:]) == [[10, 11], [20, 21], [30, 31]]


@pytest.mark.parametrize(("size", "ahead_bytes", "expected"), [(1, 2**20, 6), (1000, 9_000, 3)])
def test_prompts_are_drawn_ahead_within_bounds(size: int, ahead_bytes: int, expected: int) -> None:
    with closing(BatchingEngine(Runners.of({"fake": load_fake}), ahead_prompts=6, ahead_bytes=ahead_bytes)) as engine:
        source = Source(range(40), size=size)
        outputs = engine.run(a_model(), iter(source), check=never)
        for taken, _ in enumerate(outputs, start=1):
            # One was taken; the feeder may have begun the next draw, and never holds more than its window.
            assert source.count <= taken + expected
        assert source.count == 40


def test_decoding_overlaps_with_the_device(engine: BatchingEngine, jobs: ThreadPoolExecutor) -> None:
    steps = Steps()
    source = Source([1, 2, 3])
    job = Job(jobs, engine, a_model(on_step=steps), source)
    assert steps.started.wait(WAIT_S)
    assert source.drawn.wait(WAIT_S), "no prompt is drawn while the device is busy"
    steps.go.set()
    assert job.outputs() == [1, 2, 3]


def test_iterative_prompts_take_their_steps_and_share_batches_at_different_steps(
    engine: BatchingEngine, jobs: ThreadPoolExecutor
) -> None:
    seen: list[list[tuple[float, int]]] = []
    first, go = threading.Event(), threading.Event()

    def note(states: Sequence[FakeState]) -> None:
        seen.append([(float(s.prompt.data["x"][0]), s.steps_left) for s in states])
        first.set()
        assert go.wait(WAIT_S)

    model = a_model(max_batch=4, steps=3, on_step=note)
    early = Job(jobs, engine, model, Source([1]))
    assert first.wait(WAIT_S)
    source = Source([2])
    late = Job(jobs, engine, model, source)
    assert source.drawn.wait(WAIT_S)
    go.set()
    assert (early.outputs(), late.outputs()) == ([1], [2])
    assert [sorted(batch) for batch in seen] == [[(1, 3)], [(1, 2), (2, 3)], [(1, 1), (2, 2)], [(2, 1)]]


def test_an_older_prompt_takes_its_steps_before_a_younger_one_of_its_job(
    engine: BatchingEngine, jobs: ThreadPoolExecutor
) -> None:
    steps = Steps()
    source = Source([1, 2])
    job = Job(jobs, engine, a_model(steps=2, on_step=steps), source)
    assert source.drawn.wait(WAIT_S)
    steps.go.set()
    assert job.outputs() == [1, 2]
    assert steps.batches == [[1], [1], [2], [2]]


def test_a_bad_prompt_fails_its_own_job_only(engine: BatchingEngine, jobs: ThreadPoolExecutor) -> None:
    def fail(batch: list[float]) -> None:
        if 13 in batch:
            raise ValueError("secret /path")

    steps = Steps(fail=fail)
    model = a_model(max_batch=8, on_step=steps)
    gate = Job(jobs, engine, model, Source([0]))
    assert steps.started.wait(WAIT_S)
    sources = [Source([1, 2]), Source([12, 13]), Source([3, 4])]
    good, bad, fine = (Job(jobs, engine, model, source) for source in sources)
    assert all(source.drawn.wait(WAIT_S) for source in sources)
    steps.go.set()
    with pytest.raises(ProcessorFailed) as failure:
        bad.outputs()
    assert failure.value.detail == "the model 'echo' failed: its neural network raised ValueError"
    assert (gate.outputs(), good.outputs(), fine.outputs()) == ([0], [1, 2], [3, 4])
    assert len(steps.batches[1]) == 6
    assert run_all(engine, a_model(), numbers([5])) == [5]


def test_a_wrong_number_of_answers_fails_the_job_and_not_the_engine() -> None:
    class Forgetful(FakeRunner):
        def step(self, states: Sequence[FakeState]) -> Sequence[Any]:
            return list(super().step(states))[1:]

    with closing(BatchingEngine(Runners.of({"fake": lambda _: Forgetful()}))) as engine:
        for _ in range(2):
            with pytest.raises(ProcessorFailed, match="did not answer every prompt"):
                run_all(engine, a_model(), numbers([1]))
        assert not engine.lost


def test_out_of_memory_halves_the_batch_and_tries_once_more(engine: BatchingEngine, jobs: ThreadPoolExecutor) -> None:
    def fail(batch: list[float]) -> None:
        if len(batch) > 4:
            raise OutOfMemory

    steps = Steps(fail=fail)
    steps.go.set()
    gate = Steps()
    blocker = Job(jobs, engine, a_model("gate", on_step=gate), Source([0]))
    assert gate.started.wait(WAIT_S)
    source = Source(range(15))
    job = Job(jobs, engine, a_model(max_batch=8, on_step=steps), source)
    assert source.drawn.wait(WAIT_S)
    gate.go.set()
    assert blocker.outputs() == [0]
    assert job.outputs() == list(range(15))
    assert [len(batch) for batch in steps.batches] == [8, 4, 4, 4, 3]


def test_nothing_of_a_batch_is_held_while_no_other_comes(engine: BatchingEngine) -> None:
    seen: list[weakref.ref[Any]] = []

    def look(batch: Sequence[FakeState]) -> None:
        seen.extend(weakref.ref(state.prompt.data["x"]) for state in batch)

    assert run_all(engine, a_model(on_step=look), numbers([1])) == [1]
    wait_for(lambda: seen[0]() is None, "the engine holds what it has answered", timeout_s=WAIT_S)


def test_what_a_batch_had_made_until_there_was_no_room_is_gone_when_it_is_tried_again(engine: BatchingEngine) -> None:
    made: list[weakref.ref[Any]] = []

    def fail(states: Sequence[FakeState]) -> None:
        assert not any(earlier() is not None for earlier in made)
        activations = np.zeros(8)
        made.append(weakref.ref(activations))
        if len(states) > 1:
            raise OutOfMemory

    [prompt] = numbers([1])
    assert engine.fill(a_model(max_batch=4, on_step=fail), prompt, check=never) == 1
    assert len(made) == 2


def test_out_of_memory_that_stays_is_the_job_s_error(engine: BatchingEngine) -> None:
    def fail(_: Sequence[FakeState]) -> None:
        raise OutOfMemory("no room")

    with pytest.raises(OutOfMemory, match="no room"):
        run_all(engine, a_model(max_batch=4, on_step=fail), numbers(range(4)))
    assert run_all(engine, a_model("other"), numbers([1])) == [1]


def test_a_lost_device_fails_every_job_now_and_later(engine: BatchingEngine, jobs: ThreadPoolExecutor) -> None:
    def fail(_: list[float]) -> None:
        raise DeviceLost("gone")

    steps = Steps(fail=fail)
    model = a_model(on_step=steps)
    sources = [Source(range(3)), Source(range(3))]
    running = [Job(jobs, engine, model, source) for source in sources]
    assert all(source.drawn.wait(WAIT_S) for source in sources)
    assert not engine.lost
    steps.go.set()
    for job in running:
        with pytest.raises(DeviceLost, match="gone"):
            job.outputs()
    assert engine.lost
    with pytest.raises(DeviceLost):
        run_all(engine, a_model("other"), numbers([1]))


def test_cancel_ends_a_run_while_the_device_is_busy(engine: BatchingEngine, jobs: ThreadPoolExecutor) -> None:
    canceled = threading.Event()

    def check() -> None:
        if canceled.is_set():
            raise Canceled

    steps = Steps()
    source = Source(range(100))
    job = Job(jobs, engine, a_model(on_step=steps), source, check)
    assert steps.started.wait(WAIT_S)
    canceled.set()
    with pytest.raises(Canceled):
        job.outputs()
    assert source.closed.is_set(), "the prompts were left open"
    steps.go.set()
    assert run_all(engine, a_model("other"), numbers([7])) == [7]
    assert steps.batches == [[0]], "prompts of a canceled job reached the device"


def test_a_device_that_hangs_is_stuck_from_when_the_last_of_its_jobs_gave_up(
    engine: BatchingEngine, jobs: ThreadPoolExecutor
) -> None:
    late = threading.Event()

    def check() -> None:
        if late.is_set():
            raise Fenced

    steps = Steps()
    gate = Job(jobs, engine, a_model(on_step=steps), Source([0]), check)
    assert steps.started.wait(WAIT_S)
    assert engine.stuck_s() == 0, "a job waits for the device"
    late.set()
    with pytest.raises(Fenced):
        gate.outputs()
    first = engine.stuck_s()
    assert engine.stuck_s() > first > 0
    steps.go.set()
    assert run_all(engine, a_model("other"), numbers([7])) == [7]
    assert engine.stuck_s() == 0


def test_the_share_of_a_device_s_time_counts_the_batch_that_it_works_on(
    engine: BatchingEngine, jobs: ThreadPoolExecutor
) -> None:
    assert engine.busy_share() == 0
    steps = Steps()
    job = Job(jobs, engine, a_model(on_step=steps), Source([0]))
    assert steps.started.wait(WAIT_S)
    busy = [engine.busy_share() for _ in range(2)]
    assert 0 < busy[0] < busy[1] <= 1
    steps.go.set()
    assert job.outputs() == [0]
    wait_for(lambda: engine.busy_share() > engine.busy_share(), "the share of an idle device does not sink")


def test_closing_the_outputs_ends_the_run(engine: BatchingEngine) -> None:
    source = Source(range(100))
    outputs = engine.run(a_model(), iter(source), check=never)
    assert isinstance(next(outputs), Output)
    outputs.close()
    assert source.closed.is_set()
    assert source.count < 100


def test_the_run_ends_after_its_prompts_were_closed(engine: BatchingEngine) -> None:
    source = Source([1, 2])
    assert run_all(engine, a_model(), iter(source)) == [1, 2]
    assert source.closed.is_set()


def test_an_error_while_drawing_is_the_job_s_error(engine: BatchingEngine) -> None:
    def broken(error: BaseException) -> Iterator[Prompt]:
        yield from numbers([1])
        raise error

    with pytest.raises(InvalidInput, match="bad tile"):
        run_all(engine, a_model(), broken(InvalidInput("bad tile")))
    for foreign in (KeyError("secret"), SystemExit(1)):
        with pytest.raises(ProcessorFailed) as failure:
            run_all(engine, a_model(), broken(foreign))
        assert "secret" not in failure.value.detail
    assert run_all(engine, a_model(), numbers([2])) == [2]


def test_a_prompt_that_does_not_fit_the_model_is_refused(engine: BatchingEngine) -> None:
    with pytest.raises(ProcessorFailed, match="pixels"):
        run_all(engine, a_model(classes=3), numbers([1]))


def test_closing_the_engine_drains_its_runs(jobs: ThreadPoolExecutor) -> None:
    engine = BatchingEngine(Runners.of({"fake": load_fake}))
    steps = Steps()
    job = Job(jobs, engine, a_model(on_step=steps), Source(range(9)))
    assert steps.started.wait(WAIT_S)
    closing_engine = jobs.submit(engine.close)
    with pytest.raises(Drained):
        job.outputs()
    steps.go.set()
    closing_engine.result(WAIT_S)
    with pytest.raises(Drained):
        run_all(engine, a_model(), numbers([1]))


def test_an_unknown_runner_names_the_known_ones() -> None:
    model = a_model().model_copy(update={"runner": "warp"})
    runners = Runners.of({"fake": load_fake, "weft": load_fake})
    with (
        closing(BatchingEngine(runners)) as engine,
        pytest.raises(ModelUnavailable, match="no runner 'warp'; known runners: weft"),
    ):
        run_all(engine, model, numbers([1]))


def test_a_factory_s_own_error_does_not_leak() -> None:
    def broken(_: Model) -> FakeRunner:
        raise RuntimeError("secret")

    with closing(BatchingEngine(Runners.of({"fake": broken}))) as engine, pytest.raises(ModelUnavailable) as failure:
        engine.load(a_model(), check=never)
    assert failure.value.detail == "model 'echo' could not be loaded (RuntimeError)"


@pytest.mark.parametrize("takes_numbers", [False, True])
def test_a_runner_gets_a_file_s_own_numbers_only_if_it_takes_them(takes_numbers: bool) -> None:
    class Taking(FakeRunner):
        @property
        def takes_numbers(self) -> bool:
            return takes_numbers

    prompt = numbers_prompt(side=4, bands=2, more="as it is")
    with closing(BatchingEngine(Runners.of({"fake": lambda _: Taking()}))) as engine:
        assert engine.fill(a_model(), prompt, check=never) == 1
        (output,) = engine.run(a_model(), iter([prompt]), check=never)
    expected = prompt if takes_numbers else as_floats(prompt)
    assert output.data.keys() == expected.data.keys()
    for name, value in expected.data.items():
        np.testing.assert_array_equal(output.data[name], value)


def test_the_window_of_a_run_counts_the_bytes_that_a_prompt_has_in_the_engine() -> None:
    """Floats made of numbers count as floats, so that memory is bounded as for floats that came."""
    prompt, sizes = numbers_prompt(side=4, bands=2), []

    def on_step(_: Sequence[FakeState]) -> None:
        (run,) = engine._runs
        sizes.extend(run.held_bytes.values())

    with closing(BatchingEngine(Runners.of({"fake": load_fake}))) as engine:
        list(engine.run(a_model(on_step=on_step), iter([prompt]), check=never))
    assert sizes == [2 * 4 * 4 * 4]


def test_ready_prompts_need_no_thread_and_may_be_larger_than_the_window(jobs: ThreadPoolExecutor) -> None:
    def drawn() -> Iterator[Prompt]:
        for prompt in numbers([1, 2]):
            threads.add(threading.get_ident())
            yield prompt

    def run() -> tuple[int, list[float]]:
        outputs = engine.run(a_model(), drawn(), check=never, ready=True)
        return threading.get_ident(), [float(output.data["x"][0]) for output in outputs]

    threads = set[int]()
    with closing(BatchingEngine(Runners.of({"fake": load_fake}), ahead_prompts=1, ahead_bytes=1)) as engine:
        own, found = jobs.submit(run).result(WAIT_S)
    assert found == [1, 2]
    assert threads == {own}


def test_ctrl_c_while_the_caller_s_thread_draws_is_no_fault_of_the_processor(engine: BatchingEngine) -> None:
    def interrupted() -> Iterator[Prompt]:
        yield from numbers([1])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(engine.run(a_model(), interrupted(), check=never, ready=True))
    assert not engine._runs
