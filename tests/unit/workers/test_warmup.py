"""A model's dummy goes all the way before its first job does."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from pydantic import BaseModel

from penstock.errors import DeviceLost, Drained, ExecutionTimeout, InvalidInput, OutOfMemory, PenstockError
from penstock.models import Limits, MediaReference, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, OutputSpec, Prepared, Prompt, Result
from penstock.processors.registry import Registry
from penstock.workers.engine.base import Runner
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.fake import FakeRunner, FakeState, load_fake
from penstock.workers.engine.runners import Runners
from penstock.workers.processing import InThread
from penstock.workers.warmup import warm, warm_up
from tests.support.engine_jobs import WAIT_S, a_model, never, numbers, run_all

#: The limits that dummies were asked for.
asked_limits: list[Limits] = []


class TilesRequest(BaseModel):
    scene: MediaReference


class Tiles:
    """Makes a prompt of every byte of a file; the dummy has prompts of 1, 4 and 2 numbers."""

    request = TilesRequest
    outputs = (OutputSpec("sum", "application/json", "The sum"),)

    def __init__(self, model: Model) -> None:
        if model.name == "broken":
            raise RuntimeError("does not begin")

    def pre_process(self, request: TilesRequest, media: Media) -> Prepared[None]:
        sizes = media.path(request.scene).read_bytes()
        buffer = np.zeros(16, np.float32)

        def prompts() -> Iterator[Prompt]:
            for size in sizes:
                buffer[:] = size
                yield Prompt({"x": buffer[:size].copy()}, cost=size)

        return Prepared(prompts(), len(sizes), sum(sizes), None)

    def post_process(self, outputs: Iterator[Output], context: None, sink: ArtifactSink) -> Result:  # noqa: ARG002
        total = float(sum(output.data["x"].sum() for output in outputs))
        path = sink.path("sum.txt")
        path.write_text(str(total))
        sink.add("sum.txt", path, media_type="text/plain")
        if total != 1 + 16 + 4:
            raise InvalidInput(f"the dummy makes {total}")
        return Result(data={"sum": total})

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        asked_limits.append(limits)
        path = folder / "scene.bin"
        path.write_bytes(bytes([1, 4, 2]))
        return Dummy({"scene": "media://dummy/scene.bin"}, {"media://dummy/scene.bin": path})


@pytest.fixture
def processing() -> Iterator[InThread]:
    with closing(InThread(Registry().register("none", Tiles))) as processing:
        yield processing


@pytest.fixture
def engine() -> Iterator[BatchingEngine]:
    with closing(BatchingEngine(Runners.of({"fake": load_fake}))) as engine:
        yield engine


class Room:
    """A device that has room for so many prompts of four numbers; takes notes of the batches that it saw."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.batches: list[int] = []

    def __call__(self, states: Sequence[FakeState]) -> None:
        self.batches.append(len(states))
        if len(states) > self.room:
            raise OutOfMemory


class Said:
    """The log of a warm-up, in order."""

    def __init__(self) -> None:
        self.ready: list[str] = []
        self.failed: dict[str, PenstockError] = {}

    def fail(self, name: str, error: PenstockError) -> None:
        self.failed[name] = error


def test_the_dummy_goes_through_both_halves_and_the_engine_and_leaves_nothing(
    processing: InThread, engine: BatchingEngine, tmp_path: Path
) -> None:
    steps = Room(8)
    warmth = warm(a_model(max_batch=8, on_step=steps), processing, engine, tmp_path / "dummy", check=never)
    assert warmth.largest_batch == 8
    assert min(warmth.load_s, warmth.warm_up_s) >= 0
    assert steps.batches == [1, 1, 1, 8], "three prompts of the dummy, then as many as share a batch"
    assert list(tmp_path.iterdir()) == []


def test_a_cpu_is_warmed_up_with_a_small_dummy_of_the_models_own_limits(
    processing: InThread, engine: BatchingEngine, tmp_path: Path
) -> None:
    asked_limits.clear()
    limits = Limits(max_pixels=10**9, max_tiles=7, max_tokens=5)
    warm(
        a_model(device="cpu").model_copy(update={"limits": limits}), processing, engine, tmp_path / "dummy", check=never
    )
    assert asked_limits == [Limits(max_pixels=256 * 256, max_items=1, max_tiles=7, max_tokens=5)]


@pytest.mark.parametrize(("room", "batches"), [(5, [8, 4, 4]), (3, [8, 4, 2]), (1, [8, 4, 2, 1, 1])])
def test_a_warm_up_finds_the_largest_batch_that_fits_and_later_batches_keep_to_it(
    processing: InThread, engine: BatchingEngine, tmp_path: Path, room: int, batches: list[int]
) -> None:
    steps = Room(room)
    model = a_model(max_batch=8, on_step=steps)
    warmth = warm(model, processing, engine, tmp_path / "dummy", check=never)
    assert warmth.largest_batch == min(room, batches[-1])
    assert steps.batches[3:] == batches
    del steps.batches[:]
    assert run_all(engine, model, numbers(range(20), size=4)) == list(range(20))
    assert max(steps.batches) <= room


def test_a_model_whose_single_prompt_does_not_fit_fails(
    processing: InThread, engine: BatchingEngine, tmp_path: Path
) -> None:
    with pytest.raises(OutOfMemory):
        warm(a_model(on_step=Room(0)), processing, engine, tmp_path / "dummy", check=never)
    assert list(tmp_path.iterdir()) == []


def test_the_cost_of_a_batch_bounds_the_largest_too(
    processing: InThread, engine: BatchingEngine, tmp_path: Path
) -> None:
    steps = Room(8)
    model = a_model(max_batch=8, max_batch_cost=11, on_step=steps)
    assert warm(model, processing, engine, tmp_path / "dummy", check=never).largest_batch == 2


def test_models_that_fail_are_named_with_the_reason_and_the_others_are_ready(
    processing: InThread, tmp_path: Path
) -> None:
    def fail(_: Sequence[FakeState]) -> None:
        raise RuntimeError("a bug with a secret")

    def load(model: Model) -> Runner:
        return FakeRunner(on_step=fail) if model.name == "wrong" else load_fake(model)

    models = [a_model(name) for name in ("a", "broken", "wrong", "b")]
    models.append(a_model("unknown").model_copy(update={"runner": "warp"}))
    said = Said()
    with closing(BatchingEngine(Runners.of({"fake": load}))) as engine:
        for model in models:
            warm_up(model, processing, engine, tmp_path, ready=said.ready.append, failed=said.fail)
        assert run_all(engine, a_model("a"), numbers([1])) == [1]
    assert said.ready == ["a", "b"]
    assert {name: error.code for name, error in said.failed.items()} == {
        "broken": "model_unavailable",
        "wrong": "processor_failed",
        "unknown": "model_unavailable",
    }
    assert all("secret" not in error.detail for error in said.failed.values())
    assert list(tmp_path.iterdir()) == []


def test_a_drain_ends_a_warm_up_without_a_word(processing: InThread, engine: BatchingEngine, tmp_path: Path) -> None:
    draining = threading.Event()

    def check() -> None:
        if draining.is_set():
            raise Drained

    model, said = a_model("a", on_step=lambda _: draining.set()), Said()
    warm_up(model, processing, engine, tmp_path, ready=said.ready.append, failed=said.fail, check=check)
    assert (said.ready, said.failed) == ([], {})


def test_a_warm_up_that_takes_longer_than_a_job_may_fails(
    processing: InThread, engine: BatchingEngine, tmp_path: Path
) -> None:
    hanging = threading.Event()
    model = a_model(on_step=lambda _: hanging.wait(WAIT_S), execution_timeout_s=1)
    with pytest.raises(ExecutionTimeout):
        warm(model, processing, engine, tmp_path / "dummy", check=never)
    assert engine.stuck_s() > 0
    hanging.set()
    assert run_all(engine, a_model("other"), numbers([1])) == [1]


def test_a_device_that_is_lost_while_warming_up_fails_what_is_left(
    processing: InThread, engine: BatchingEngine, tmp_path: Path
) -> None:
    def lose(_: Sequence[FakeState]) -> None:
        raise DeviceLost

    said = Said()
    for model in (a_model("a"), a_model("b", on_step=lose), a_model("c")):
        warm_up(model, processing, engine, tmp_path, ready=said.ready.append, failed=said.fail)
    assert said.ready == ["a"]
    assert {name: error.code for name, error in said.failed.items()} == {"b": "device_lost", "c": "device_lost"}
    assert engine.lost


def test_filling_a_batch_beside_running_jobs_takes_nothing_from_them(engine: BatchingEngine) -> None:
    model = a_model(max_batch=4)
    results: list[list[float]] = []
    job = threading.Thread(target=lambda: results.append(run_all(engine, model, numbers(range(200)))))
    job.start()
    (prompt,) = numbers([7])
    assert engine.fill(model, prompt, check=never) == 4
    job.join(WAIT_S)
    assert results == [list(range(200))]
