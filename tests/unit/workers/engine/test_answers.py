"""The jobs of a batch get their answers at once; none of them can keep the others from theirs."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import closing, nullcontext

import pytest

from penstock.errors import Canceled, OutOfMemory, PenstockError, ProcessorFailed
from penstock.models import Model
from penstock.workers.engine import runs
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.fake import FakeState, load_fake
from penstock.workers.engine.runners import Runners
from tests.support.engine_jobs import WAIT_S, Job, Source, Steps, a_model, never, numbers, values

JOBS = 8


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(JOBS + 1) as pool:
        yield pool


@pytest.fixture
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs look for answers only when they are woken: a wake that is lost is not made up for."""
    monkeypatch.setattr(runs, "POLL_S", 100 * WAIT_S)


@pytest.mark.usefixtures("no_polls")
def test_all_jobs_of_a_batch_get_their_answers_without_looking_for_them(pool: ThreadPoolExecutor) -> None:
    with closing(BatchingEngine(Runners.of({"fake": load_fake}))) as engine:
        model = a_model(max_batch=JOBS)
        answers = [pool.submit(_ready, engine, model, number) for number in range(40 * JOBS)]
        assert [answer.result(WAIT_S) for answer in answers] == [[number] for number in range(40 * JOBS)]


@pytest.mark.usefixtures("no_polls")
@pytest.mark.parametrize("gone", [0, 3, JOBS - 1])
def test_a_job_that_is_canceled_when_its_answer_comes_keeps_no_other_from_theirs(
    pool: ThreadPoolExecutor, gone: int
) -> None:
    canceled = threading.Event()

    def cancel(batch: list[float]) -> None:
        if len(batch) == JOBS:
            canceled.set()

    def check() -> None:
        if canceled.is_set():
            raise Canceled

    steps = Steps(fail=cancel)
    with closing(BatchingEngine(Runners.of({"fake": load_fake}))) as engine:
        model = a_model(max_batch=JOBS, on_step=steps)
        gate = Job(pool, engine, model, Source([-1]))
        assert steps.started.wait(WAIT_S)
        sources = [Source([number]) for number in range(JOBS)]
        jobs = [
            Job(pool, engine, model, source, check if number == gone else never)
            for number, source in enumerate(sources)
        ]
        assert all(source.drawn.wait(WAIT_S) for source in sources)
        steps.go.set()
        assert gate.outputs() == [-1]
        for number, job in enumerate(jobs):
            with pytest.raises(Canceled) if number == gone else nullcontext():
                assert job.outputs() == [number]
    assert [sorted(batch) for batch in steps.batches[1:]] == [list(range(JOBS))]


@pytest.mark.usefixtures("no_polls")
def test_a_job_that_is_busy_with_an_output_keeps_no_other_from_theirs(pool: ThreadPoolExecutor) -> None:
    with closing(BatchingEngine(Runners.of({"fake": load_fake}))) as engine:
        model = a_model(max_batch=2)
        with closing(engine.run(model, numbers([1, 2, 3]), check=never)) as busy:
            assert next(busy).data["x"].tolist() == [1]
            others = [pool.submit(_ready, engine, model, number) for number in range(JOBS)]
            assert [other.result(WAIT_S) for other in others] == [[number] for number in range(JOBS)]
            assert [output.data["x"].tolist() for output in busy] == [[2], [3]]


@pytest.mark.usefixtures("no_polls")
@pytest.mark.parametrize("error", [OutOfMemory, ProcessorFailed])
def test_the_first_half_of_a_failed_batch_has_its_answer_before_the_second_half_is_done(
    pool: ThreadPoolExecutor, error: type[PenstockError]
) -> None:
    begun, begin, gate_ended, taken = (threading.Event() for _ in range(4))

    def step(states: Sequence[FakeState]) -> None:
        batch = values(states)
        if batch == [-1]:
            begun.set()
            assert begin.wait(WAIT_S)
        elif len(batch) > 1:
            assert gate_ended.wait(WAIT_S)  # no other job that wakes is left to wake the first half's
            raise error("too many")
        elif finished:
            assert taken.wait(WAIT_S)
        finished.extend(number for number in batch if number >= 0)

    finished: list[float] = []
    with closing(BatchingEngine(Runners.of({"fake": load_fake}))) as engine:
        model = a_model(max_batch=2, on_step=step)
        gate = pool.submit(_ready, engine, model, -1)
        assert begun.wait(WAIT_S)
        sources = [Source([number]) for number in range(2)]
        jobs = [Job(pool, engine, model, source) for source in sources]
        assert all(source.drawn.wait(WAIT_S) for source in sources)
        begin.set()
        assert gate.result(WAIT_S) == [-1]
        gate_ended.set()
        assert wait([job.result for job in jobs], WAIT_S, return_when=FIRST_COMPLETED).done
        taken.set()
        assert [job.outputs() for job in jobs] == [[0], [1]]


def _ready(engine: BatchingEngine, model: Model, number: float) -> list[float]:
    outputs = engine.run(model, numbers([number]), check=never, ready=True)
    return [float(output.data["x"][0]) for output in outputs]
