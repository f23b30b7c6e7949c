from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from penstock.errors import Canceled
from penstock.models import Model
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.fake import FakeRunner, load_fake
from tests.unit.engine_jobs import WAIT_S, Job, Source, Steps, a_model, never, numbers, run_all


@pytest.fixture
def jobs() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


class Loads:
    """A factory that takes notes of what was loaded and unloaded."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def __call__(self, model: Model) -> FakeRunner:
        self.notes.append(f"+{model.name}")
        notes = self.notes

        class Noted(FakeRunner):
            def close(self) -> None:
                notes.append(f"-{model.name}")

        return Noted(on_step=model.options.get("on_step"))


def test_the_least_recently_used_model_makes_room() -> None:
    loads = Loads()
    with closing(BatchingEngine({"fake": loads}, max_models=2)) as engine:
        for name in "abacab":
            assert run_all(engine, a_model(name), numbers([1])) == [1]
            assert engine.load(a_model(name), check=never) >= 0
    assert loads.notes == ["+a", "+b", "-b", "+c", "-c", "+b", "-a", "-b"]


def test_a_model_in_use_stays_and_another_waits_for_room(jobs: ThreadPoolExecutor) -> None:
    loads, steps = Loads(), Steps()
    with closing(BatchingEngine({"fake": loads}, max_models=1)) as engine:
        first = Job(jobs, engine, a_model("a", on_step=steps), Source([1]))
        assert steps.started.wait(WAIT_S)
        waiting = threading.Event()
        calls = iter([lambda: None, waiting.set])
        second = Job(jobs, engine, a_model("b"), Source([2]), lambda: next(calls, lambda: None)())
        assert waiting.wait(WAIT_S)
        assert loads.notes == ["+a"]
        steps.go.set()
        assert (first.outputs(), second.outputs()) == ([1], [2])
    assert loads.notes == ["+a", "-a", "+b", "-b"]


def test_a_job_that_waits_for_room_can_be_canceled(jobs: ThreadPoolExecutor) -> None:
    canceled = threading.Event()

    def check() -> None:
        if canceled.is_set():
            raise Canceled

    steps = Steps()
    with closing(BatchingEngine({"fake": load_fake}, max_models=1)) as engine:
        first = Job(jobs, engine, a_model("a", on_step=steps), Source([1]))
        assert steps.started.wait(WAIT_S)
        second = Job(jobs, engine, a_model("b"), Source([2]), check)
        canceled.set()
        with pytest.raises(Canceled):
            second.outputs()
        steps.go.set()
        assert first.outputs() == [1]


def test_a_model_stays_while_the_step_of_a_canceled_job_runs(jobs: ThreadPoolExecutor) -> None:
    canceled, waiting = threading.Event(), threading.Event()

    def check() -> None:
        if canceled.is_set():
            raise Canceled

    loads, steps = Loads(), Steps()
    with closing(BatchingEngine({"fake": loads}, max_models=1)) as engine:
        first = Job(jobs, engine, a_model("a", on_step=steps), Source([1]), check)
        assert steps.started.wait(WAIT_S)
        canceled.set()
        with pytest.raises(Canceled):
            first.outputs()
        calls = iter([lambda: None, waiting.set])
        second = Job(jobs, engine, a_model("b"), Source([2]), lambda: next(calls, lambda: None)())
        assert waiting.wait(WAIT_S)
        assert loads.notes == ["+a"]
        steps.go.set()
        assert second.outputs() == [2]


def test_a_model_is_loaded_once_for_many_jobs(jobs: ThreadPoolExecutor) -> None:
    loads = Loads()
    with closing(BatchingEngine({"fake": loads})) as engine:
        running = [Job(jobs, engine, a_model(), Source(range(20))) for _ in range(6)]
        assert [job.outputs() for job in running] == [list(range(20))] * 6
        assert loads.notes == ["+echo"]
