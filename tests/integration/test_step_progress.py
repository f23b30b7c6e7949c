"""Progress of a runner of many steps counts the steps of all its prompts, in a worker and in `penstock.Engine`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.jobs import Progress, State
from penstock.processors.base import Media, Prepared
from penstock.processors.registry import Registry
from penstock.storage.redis import records
from penstock.workers.claim_loop import Slots
from penstock.workers.processing import InThread
from tests.support.echo_processor import Bench, Echo, EchoRequest, open_bench
from tests.support.valkey import ValkeyProcess

STEPS = 5


class StepwiseEcho(Echo):
    """Says that each echo is five steps."""

    def pre_process(self, request: EchoRequest, media: Media) -> Prepared[Any]:
        return replace(super().pre_process(request, media), unit="steps", steps=STEPS)


@pytest.fixture
def bench(valkey: ValkeyProcess, tmp_path: Path) -> Iterator[Bench]:
    with open_bench(valkey.url, tmp_path) as bench:
        serving = bench.pipeline.served.runnable()["echo"]
        model = serving.model.model_copy(update={"options": {**serving.model.options, "steps": STEPS}, "max_batch": 2})
        bench.pipeline.served.put(model, bench.entry)
        processing = InThread(Registry().register("echo", StepwiseEcho))
        pipeline = replace(bench.pipeline, processing=processing)
        slots = Slots(bench.settings, bench.store, pipeline.served, pipeline.run)
        yield replace(bench, pipeline=pipeline, slots=slots)


def test_a_job_of_two_prompts_in_one_batch_advances_step_by_step(bench: Bench) -> None:
    seen: list[Progress] = []
    heartbeat = bench.pipeline.heartbeat

    def look(states: object) -> None:  # noqa: ARG001
        [attempt] = heartbeat._running()
        seen.append(attempt.progress)

    serving = bench.pipeline.served.runnable()["echo"]
    model = serving.model.model_copy(update={"options": {**serving.model.options, "on_step": look}})
    bench.pipeline.served.put(model, bench.entry)
    key = bench.submit("a", {"text": bench.upload("hi "), "times": 2})
    assert bench.slots.work("default") == 1
    job = bench.store.run(records.read(key))
    assert (job.state, job.progress) == (State.SUCCEEDED, Progress(10, 10, "steps"))
    assert {(progress.total, progress.unit) for progress in seen} == {(10, "steps")}
    done = [progress.done for progress in seen]
    assert done == sorted(done)
    assert (done[0], len(set(done)) >= STEPS) == (0, True), "not in leaps of a whole prompt"
