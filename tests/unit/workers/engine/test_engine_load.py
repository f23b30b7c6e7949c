"""Fairness of the engine: shares of batches and their order, counted in batches, without a clock."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest

from penstock.models import Model
from penstock.processors.base import Prompt
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.fake import FakeRunner, FakeState, load_fake
from penstock.workers.engine.runners import Runners
from tests.support.engine_jobs import WAIT_S, Job, Source, Steps, a_model, never, run_all, values


@pytest.fixture
def engine() -> Iterator[BatchingEngine]:
    with closing(BatchingEngine(Runners.of({"fake": load_fake}))) as engine:
        yield engine


@pytest.fixture
def jobs() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(250) as pool:
        yield pool


def hold(engine: BatchingEngine, jobs: ThreadPoolExecutor) -> tuple[Steps, Job]:
    """Keep the device busy with a prompt of another model until its `go` is set."""
    gate = Steps()
    job = Job(jobs, engine, a_model("gate", on_step=gate), Source([0]))
    assert gate.started.wait(WAIT_S)
    return gate, job


def test_a_model_may_bound_a_batch_by_cost(engine: BatchingEngine, jobs: ThreadPoolExecutor) -> None:
    steps = Steps()
    steps.go.set()
    gate, _ = hold(engine, jobs)
    source = Source(range(6), size=100)
    job = Job(jobs, engine, a_model(max_batch=8, max_batch_cost=250, on_step=steps), source)
    assert source.drawn.wait(WAIT_S)
    gate.go.set()
    assert job.outputs() == list(range(6))
    assert steps.batches == [[0, 1], [2, 3], [4, 5]]


def test_a_prompt_beyond_the_cost_of_a_batch_goes_alone(engine: BatchingEngine, jobs: ThreadPoolExecutor) -> None:
    steps = Steps()
    steps.go.set()
    gate, _ = hold(engine, jobs)
    source = Source([1, 2], size=1000)
    job = Job(jobs, engine, a_model(max_batch=8, max_batch_cost=250, on_step=steps), source)
    assert source.drawn.wait(WAIT_S)
    gate.go.set()
    assert job.outputs() == [1, 2]
    assert steps.batches == [[1], [2]]


def test_of_jobs_that_came_together_the_one_with_the_least_left_goes_first(
    engine: BatchingEngine, jobs: ThreadPoolExecutor
) -> None:
    steps = Steps()
    steps.go.set()
    gate, _ = hold(engine, jobs)
    model = a_model(on_step=steps)
    sources = {cost: Source([cost]) for cost in (500, 1, 20)}
    running = [Job(jobs, engine, model, source, cost=cost) for cost, source in sources.items()]
    unknown = Source([-1])
    running.append(Job(jobs, engine, model, unknown))
    assert all(source.drawn.wait(WAIT_S) for source in (*sources.values(), unknown))
    gate.go.set()
    assert [job.outputs() for job in running] == [[500], [1], [20], [-1]]
    assert steps.batches == [[1], [20], [500], [-1]]


def test_a_runner_that_pads_has_prompts_of_several_shapes_in_a_batch(jobs: ThreadPoolExecutor) -> None:
    class Padding(FakeRunner):
        def bucket(self, prompt: Prompt) -> Hashable:  # noqa: ARG002
            return "text"

    steps = Steps()
    steps.go.set()
    factories = {"fake": load_fake, "padding": lambda _: Padding(max_batch=8, on_step=steps)}
    with closing(BatchingEngine(Runners.of(factories))) as engine:
        gate, _ = hold(engine, jobs)
        sources = [Source([size], size=size) for size in (1, 2, 3)]
        model = a_model("text").model_copy(update={"runner": "padding"})
        running = [Job(jobs, engine, model, source) for source in sources]
        assert all(source.drawn.wait(WAIT_S) for source in sources)
        gate.go.set()
        assert [job.outputs() for job in running] == [[1], [2], [3]]
    assert [sorted(batch) for batch in steps.batches] == [[1, 2, 3]]


def test_a_wrong_dtype_or_shape_fails_its_own_job_only(jobs: ThreadPoolExecutor) -> None:
    """Prompts of another dtype never meet those of the right one, so a network that cannot take them fails alone."""

    def refuse(states: Sequence[FakeState]) -> None:
        assert len({(state.prompt.data["x"].dtype, state.prompt.data["x"].shape) for state in states}) == 1
        if states[0].prompt.data["x"].dtype != np.float32 or states[0].prompt.data["x"].ndim != 1:
            raise RuntimeError("expected scalar type Float but found Double")

    with closing(BatchingEngine(Runners.of({"fake": load_fake}))) as engine:
        model = a_model(max_batch=4, on_step=refuse)
        for wrong in (np.zeros(1, np.float64), np.zeros((1, 1), np.float32), np.zeros((), np.float32)):
            good = jobs.submit(run_all, engine, model, iter(Source([1, 2, 3])))
            outputs = engine.run(model, iter([Prompt({"x": wrong})]), check=never)
            with pytest.raises(Exception, match=r"failed: its .* raised RuntimeError"):
                next(outputs)
            assert good.result(WAIT_S) == [1, 2, 3]
        assert run_all(engine, model, iter(Source([4]))) == [4]


class Arrivals:
    """200 jobs of one image each: five come during every step, and twenty more during every tenth.

    `waits` says for each how many steps began between its coming and the one that answered it, that one included.
    """

    IMAGES = 200

    def __init__(self, jobs: ThreadPoolExecutor, engine: BatchingEngine) -> None:
        self.model: Model = a_model(max_batch=8, on_step=self)
        self.waits: list[int] = []
        self.over = threading.Event()
        self._jobs, self._engine = jobs, engine
        self._came: dict[float, int] = {}
        self._steps = 0

    def __call__(self, states: Sequence[FakeState]) -> None:
        self._steps += 1
        self.waits += [self._steps - self._came[image] for image in values(states) if image < 0]
        self.come(5 if self._steps % 10 else 25)
        if len(self.waits) == self.IMAGES:
            self.over.set()

    def come(self, images: int) -> None:
        """Have jobs come and wait until the engine has their prompts."""
        first = len(self._came)
        sources = []
        for number in range(first, min(first + images, self.IMAGES)):
            image = -1.0 - number
            self._came[image] = self._steps
            sources.append(Source([image]))
            Job(self._jobs, self._engine, self.model, sources[-1], cost=1)
        assert all(source.drawn.wait(WAIT_S) for source in sources)


def p95(waits: list[int]) -> int:
    return sorted(waits)[round(0.95 * len(waits)) - 1]


def test_a_scene_of_529_tiles_makes_single_images_wait_two_batches_more_at_most(jobs: ThreadPoolExecutor) -> None:
    found: dict[str, list[int]] = {}
    for what, tiles in (("alone", 0), ("beside a scene", 529)):
        with closing(BatchingEngine(Runners.of({"fake": load_fake}))) as engine:
            arrivals = Arrivals(jobs, engine)
            gate, _ = hold(engine, jobs)
            source = Source(range(tiles))
            scene = Job(jobs, engine, arrivals.model, source, cost=max(1, tiles))
            arrivals.come(5)
            gate.go.set()
            assert arrivals.over.wait(WAIT_S)
            assert scene.outputs() == list(range(tiles))
        found[what] = arrivals.waits
    assert len(found["alone"]) == len(found["beside a scene"]) == 200
    assert p95(found["beside a scene"]) <= p95(found["alone"]) + 2
    assert max(found["beside a scene"]) <= max(found["alone"]) + 2
