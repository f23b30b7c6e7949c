from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psutil
import pytest
import torch

from penstock.errors import Canceled, ModelUnavailable
from penstock.models import Model
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.fake import FakeRunner, load_fake
from penstock.workers.engine.memory import budget_bytes
from penstock.workers.engine.runners import Runners
from tests.support.engine_jobs import WAIT_S, Job, Source, Steps, a_model, never, numbers, run_all


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

        return Noted(on_step=model.options.get("on_step"), memory_bytes=model.options.get("memory_bytes", 0))


def test_the_least_recently_used_model_makes_room() -> None:
    loads = Loads()
    with closing(BatchingEngine(Runners.of({"fake": loads}), max_models=2)) as engine:
        for name in "abacab":
            assert run_all(engine, a_model(name), numbers([1])) == [1]
            assert engine.load(a_model(name), check=never) >= 0
    assert loads.notes == ["+a", "+b", "-b", "+c", "-c", "+b", "-a", "-b"]


def test_a_model_in_use_stays_and_another_waits_for_room(jobs: ThreadPoolExecutor) -> None:
    loads, steps = Loads(), Steps()
    with closing(BatchingEngine(Runners.of({"fake": loads}), max_models=1)) as engine:
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
    with closing(BatchingEngine(Runners.of({"fake": load_fake}), max_models=1)) as engine:
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
    with closing(BatchingEngine(Runners.of({"fake": loads}), max_models=1)) as engine:
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
    with closing(BatchingEngine(Runners.of({"fake": loads}))) as engine:
        running = [Job(jobs, engine, a_model(), Source(range(20))) for _ in range(6)]
        assert [job.outputs() for job in running] == [list(range(20))] * 6
        assert loads.notes == ["+echo"]


def test_models_are_kept_within_a_budget_of_memory() -> None:
    loads = Loads()
    with closing(BatchingEngine(Runners.of({"fake": loads}), memory_bytes=100)) as engine:
        for name, size in (("a", 40), ("b", 40), ("a", 40), ("c", 20), ("d", 40)):
            engine.load(a_model(name, memory_bytes=size), check=never)
        assert loads.notes == ["+a", "+b", "+c", "+d", "-b"], "only what was used least recently goes, as far as needed"
        engine.load(a_model("b", memory_bytes=40), check=never)
        assert loads.notes[5:] == ["-a", "+b"], "what is known to be too much for the room goes before it is loaded"


def test_weights_on_disk_tell_how_much_room_to_make(tmp_path: Path) -> None:
    loads = Loads()
    (tmp_path / "model.safetensors").write_bytes(bytes(80))
    (tmp_path / "README.md").write_bytes(bytes(1000))
    with closing(BatchingEngine(Runners.of({"fake": loads}), memory_bytes=100)) as engine:
        engine.load(a_model("a", memory_bytes=40), check=never)
        large = a_model("b", memory_bytes=80).model_copy(update={"source": str(tmp_path)})
        engine.load(large, check=never)
        assert loads.notes == ["+a", "-a", "+b"]


def test_a_model_beyond_the_whole_budget_is_refused_with_both_numbers_and_others_serve() -> None:
    loads = Loads()
    with closing(BatchingEngine(Runners.of({"fake": loads}), memory_bytes=100)) as engine:
        for _ in range(2):
            with pytest.raises(ModelUnavailable, match=r"takes 1,001 bytes of memory, and models may take 100 here"):
                engine.load(a_model("large", memory_bytes=1001), check=never)
        assert run_all(engine, a_model("small", memory_bytes=100), numbers([1])) == [1]
    assert loads.notes == ["+large", "-large", "+small", "-small"], "what is known to be too large is not loaded again"


def test_a_model_that_turns_out_too_large_for_the_room_waits_until_others_are_unused(jobs: ThreadPoolExecutor) -> None:
    loads, steps = Loads(), Steps()
    with closing(BatchingEngine(Runners.of({"fake": loads}), memory_bytes=100)) as engine:
        first = Job(jobs, engine, a_model("a", on_step=steps, memory_bytes=40), Source([1]))
        assert steps.started.wait(WAIT_S)
        waiting = threading.Event()
        calls = iter([lambda: None, lambda: None, waiting.set])
        second = Job(jobs, engine, a_model("b", memory_bytes=80), Source([2]), lambda: next(calls, lambda: None)())
        assert waiting.wait(WAIT_S)
        assert loads.notes == ["+a", "+b", "-b"]
        steps.go.set()
        assert (first.outputs(), second.outputs()) == ([1], [2])
    assert loads.notes == ["+a", "+b", "-b", "-a", "+b", "-b"]


def test_two_models_load_at_the_same_time(jobs: ThreadPoolExecutor) -> None:
    both = threading.Barrier(2)

    def factory(_: Model) -> FakeRunner:
        both.wait(WAIT_S)
        return FakeRunner()

    with closing(BatchingEngine(Runners.of({"fake": factory}))) as engine:
        loading = [jobs.submit(engine.load, a_model(name), check=never) for name in "ab"]
        assert all(future.result(WAIT_S) >= 0 for future in loading)


def test_without_a_budget_half_the_machine_s_memory_is_for_models() -> None:
    assert not torch.cuda.is_available(), "this test is about a machine without"
    assert budget_bytes() == psutil.virtual_memory().total // 2
    assert budget_bytes(3) == psutil.virtual_memory().total // 2 // 3


SLOW_IMPORT = """
import threading, gate
from penstock.workers.engine.memory import budget_bytes

importing = threading.Thread(target=lambda: __import__("torch"))
importing.start()
gate.begun.wait(10)
answers = []
asking = threading.Thread(target=lambda: answers.append(budget_bytes()))
asking.start()
threading.Timer(0.1, gate.go.set).start()
asking.join(20)
assert answers and answers[0] > 0
"""


def test_the_budget_waits_for_an_import_of_torch_by_another_thread(tmp_path: Path) -> None:
    (tmp_path / "gate.py").write_text("import threading\nbegun, go = threading.Event(), threading.Event()\n")
    (tmp_path / "torch.py").write_text(
        "import gate\ngate.begun.set()\ngate.go.wait(10)\nclass cuda:\n    is_available = staticmethod(lambda: False)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    subprocess.run([sys.executable, "-c", SLOW_IMPORT], env=environment, check=True, timeout=60)
