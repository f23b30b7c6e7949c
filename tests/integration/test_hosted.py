"""Runners in processes of their own: the same answers as inside the worker, and what becomes of jobs when one ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from penstock.errors import Canceled, InvalidInput, ModelProcessEnded, ModelUnavailable, OutOfMemory, ProcessorFailed
from penstock.functions.wire import MAX_ARRAYS
from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.hosted.runner import HostedRunner
from penstock.workers.engine.runners import Runners
from tests.support import hub, vision
from tests.support.engine_jobs import WAIT_S, never
from tests.support.polling import wait_for
from tests.support.trial_runner import SPEC, install, prompt

#: Numbers of an array that does not fit into the socket.
LARGE = 100_000


def _clip(folder: Path) -> Path:
    return vision.a_clip(folder)


PHOTOS = [Prompt({"pixels": hub.an_image(3, 32, 32, seed=seed)}, cost=1) for seed in range(5)]
LARGER = [Prompt({"pixels": hub.an_image(3, 64, 96, seed=seed)}, cost=1) for seed in range(3)]
SIZED = [Prompt({"pixels": one.data["pixels"], "size": [40 + at, 50]}, cost=1) for at, one in enumerate(LARGER)]
SHOWN = [Prompt({"pixels": one.data["pixels"], "shown": [50, 60 + at]}, cost=1) for at, one in enumerate(LARGER)]
MASKS = [
    Prompt(
        {"pixels": one.data["pixels"], "size": [40, 50], "threshold": 0.0, "mask_threshold": 0.5,
         "overlap_threshold": 0.0},
        cost=1,
    )
    for one in LARGER
]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "prompts", "fields"),
    [
        (hub.a_vit, PHOTOS, {}),
        (hub.a_vit_backbone, PHOTOS, {"options": {"encoder_cache_bytes": 2**20}}),
        (hub.a_segformer, SIZED, {"processor": "image-segmentation"}),
        (vision.a_detr, SHOWN, {"processor": "object-detection"}),
        (vision.a_dpt, LARGER[:0] + PHOTOS, {"processor": "depth-estimation"}),
        (vision.a_mask2former, MASKS, {"processor": "instance-segmentation"}),
    ],
    ids=["labels", "embeddings", "classes", "boxes", "depths", "masks"],
)
def test_a_model_of_pictures_answers_in_its_process_as_inside_the_worker(
    make: Callable[[Path], Path], prompts: Sequence[Prompt], fields: dict[str, Any], tmp_path: Path
) -> None:
    fields = {"processor": "image-embedding" if "options" in fields else "image-classification", **fields}
    model = hub.a_model(make(tmp_path / "m"), max_batch=1, **fields)  # on a CPU others in a batch change last bits
    found = {}
    for own in (False, True):
        placed = model.model_copy(update={"name": f"own-{own}".lower(), "own_process": own})
        with closing(BatchingEngine(Runners.installed())) as engine:
            found[own] = list(engine.run(placed, iter(prompts), check=never))
            assert len(found[own]) == len(prompts)
    for here, there in zip(found[False], found[True], strict=True):
        assert here.data.keys() == there.data.keys()
        assert here.counts == there.counts
        for name, value in here.data.items():
            np.testing.assert_array_equal(there.data[name], value)
            assert getattr(there.data[name], "dtype", None) == getattr(value, "dtype", None)


@pytest.fixture
def runners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runners:
    monkeypatch.setenv("PYTHONPATH", install(tmp_path / "package"))
    return Runners.installed().register("trial", SPEC)


@pytest.fixture
def engine(runners: Runners) -> Iterator[BatchingEngine]:
    with closing(BatchingEngine(runners)) as engine:
        yield engine


@pytest.fixture
def jobs() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def a_model(name: str = "trial", **options: Any) -> Model:
    return Model(
        name=name, title=name, runner="trial", processor="none", source="none", revision="1", max_batch=4,
        own_process=True, options=options,
    )  # fmt: skip


def run(engine: BatchingEngine, model: Model, *prompts: Prompt) -> list[Output]:
    return list(engine.run(model, iter(prompts), check=never, ready=True))


def pids(outputs: Sequence[Output]) -> set[int]:
    return {output.data["pid"] for output in outputs}


@pytest.mark.parametrize("size", [3, LARGE])
def test_small_and_large_prompts_and_outputs_cross(engine: BatchingEngine, size: int) -> None:
    outputs = run(engine, a_model(), *(prompt(value, size=size) for value in range(30)))
    assert [float(output.data["x"][0]) for output in outputs] == [2 * value for value in range(30)]
    assert all(output.data["x"].shape == (size,) for output in outputs)
    assert len(pids(outputs)) == 1
    assert os.getpid() not in pids(outputs)


def test_a_prompt_that_does_not_fit_fails_alone(engine: BatchingEngine, jobs: ThreadPoolExecutor) -> None:
    model = a_model()
    engine.load(model, check=never)
    good = [jobs.submit(run, engine, model, prompt(value)) for value in range(8)]
    with pytest.raises(InvalidInput, match="refuses this"):
        run(engine, model, prompt(1, "refused"))
    assert [float(job.result(WAIT_S)[0].data["x"][0]) for job in good] == [2 * value for value in range(8)]


def test_a_batch_of_more_arrays_than_a_message_holds_is_divided(engine: BatchingEngine) -> None:
    model = a_model()
    parts = {f"part{at}": np.ones(1) for at in range(MAX_ARRAYS // 3)}
    many = [replace(each, data={**each.data, **parts}) for each in map(prompt, range(8))]
    outputs = run(engine, model, *many)
    assert [float(output.data["x"][0]) for output in outputs] == [2 * value for value in range(8)]
    assert len(pids(outputs)) == 1


def test_a_value_that_cannot_be_sent_fails_its_job(engine: BatchingEngine) -> None:
    with pytest.raises(ProcessorFailed, match="the model 'trial' failed"):
        run(engine, a_model(), Prompt({"x": np.ones(1), "do": object()}))
    assert len(run(engine, a_model(), prompt(1))) == 1


def test_an_error_inside_the_network_ends_the_prompt_that_causes_it(
    engine: BatchingEngine, jobs: ThreadPoolExecutor
) -> None:
    model = a_model()
    good = [jobs.submit(run, engine, model, prompt(value)) for value in range(6)]
    with pytest.raises(ProcessorFailed, match="its neural network raised ZeroDivisionError"):
        run(engine, model, prompt(1, "raise"))
    assert all(len(job.result(WAIT_S)) == 1 for job in good)


@pytest.mark.parametrize("do", ["kill", "lost"])
def test_the_end_of_a_process_hurts_the_prompt_that_causes_it_and_no_other(
    engine: BatchingEngine, jobs: ThreadPoolExecutor, do: str
) -> None:
    model, other = a_model(), a_model("other")
    [beside] = run(engine, other, prompt(1))
    before = pids(run(engine, model, prompt(1)))
    good = [jobs.submit(run, engine, model, *(prompt(value, size=LARGE) for value in range(6))) for _ in range(4)]
    with pytest.raises(ModelProcessEnded):
        run(engine, model, prompt(2), prompt(1, do))
    for job in good:
        assert [float(output.data["x"][0]) for output in job.result(2 * WAIT_S)] == [2 * value for value in range(6)]
    assert not pids(run(engine, model, prompt(1))) & before
    assert pids(run(engine, other, prompt(1))) == pids([beside])
    assert not engine.lost


@pytest.mark.parametrize(("size", "count"), [(3, 400), (LARGE, 60)])
def test_a_killed_process_fails_no_job_of_several(
    engine: BatchingEngine, jobs: ThreadPoolExecutor, size: int, count: int
) -> None:
    """Large prompts are being sent when it ends."""
    model = a_model()
    [first] = run(engine, model, prompt(1))
    going = [jobs.submit(run, engine, model, *(prompt(value, size=size) for value in range(count))) for _ in range(3)]
    os.kill(first.data["pid"], signal.SIGKILL)
    for job in going:
        outputs = job.result(2 * WAIT_S)
        assert [float(output.data["x"][0]) for output in outputs] == [2 * value for value in range(count)]


def test_a_batch_without_room_is_halved(engine: BatchingEngine, tmp_path: Path) -> None:
    made = tmp_path / "batches"
    made.mkdir()
    model = a_model(room=2, folder=str(made))
    outputs = run(engine, model, *(prompt(value) for value in range(12)))
    assert [float(output.data["x"][0]) for output in outputs] == [2 * value for value in range(12)]
    sizes = [int(path.read_text()) for path in sorted(made.iterdir(), key=lambda path: path.name.partition("-")[2])]
    assert sizes[0] == 4
    assert set(sizes[-3:]) == {2}


def test_a_prompt_without_room_fails_its_job(engine: BatchingEngine) -> None:
    with pytest.raises(OutOfMemory):
        run(engine, a_model(room=0), prompt(1))


def test_a_process_that_hangs_for_nobody_is_ended(
    engine: BatchingEngine, jobs: ThreadPoolExecutor, tmp_path: Path
) -> None:
    made = tmp_path / "batches"
    made.mkdir()
    model, stop = a_model(folder=str(made)), threading.Event()
    [output] = run(engine, model, prompt(1))

    def check() -> None:
        if stop.is_set():
            raise Canceled

    hanging = jobs.submit(lambda: list(engine.run(model, iter([prompt(1, "hang")]), check=check)))
    wait_for(lambda: len(list(made.iterdir())) == 2, "the batch does not begin")
    waiting = jobs.submit(run, engine, model, prompt(3))
    stop.set()
    with pytest.raises(Canceled):
        hanging.result(WAIT_S)
    [after] = waiting.result(2 * WAIT_S)
    assert float(after.data["x"][0]) == 6
    assert after.data["pid"] != output.data["pid"]


def test_the_process_ends_with_its_runner(runners: Runners) -> None:
    runner = runners.load(a_model())
    assert isinstance(runner, HostedRunner)
    assert (runner.max_batch, runner.memory_bytes, runner.takes_numbers) == (4, 5, False)
    [done] = runner.step([runner.admit(prompt(1))])
    runner.close()
    wait_for(lambda: not psutil.pid_exists(done.output.data["pid"]), "the process goes on")  # type: ignore[union-attr]
    with pytest.raises((ModelUnavailable, ProcessorFailed)):
        runner.step([runner.admit(prompt(1))])


def test_a_model_that_cannot_be_loaded_says_why(runners: Runners) -> None:
    with pytest.raises(ModelUnavailable, match="the weights are damaged"):
        runners.load(a_model(broken=True))


def test_a_model_of_texts_refuses_a_process_of_its_own() -> None:
    model = hub.a_model(Path("none"), processor="text-generation", own_process=True)
    for ask in (Runners.installed().check, Runners.installed().load):
        with pytest.raises(ModelUnavailable, match="leave out `own_process`"):
            ask(model)


def test_models_of_pictures_stay_inside_the_worker_unless_their_record_asks() -> None:
    model = hub.a_model(Path("none"), processor="image-classification")
    assert Runners.installed().hosting_of(model) is None
    assert Runners.installed().hosting_of(model.model_copy(update={"own_process": True})) is not None
