"""Jobs, prompts and a device that waits, for the tests of the engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from penstock.models import Model
from penstock.processors.base import Prompt
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.fake import FakeState

WAIT_S = 20

#: Options that the fake runner understands.
OPTIONS = ("steps", "on_step", "classes", "partials", "memory_bytes")


def a_model(name: str = "echo", **fields: Any) -> Model:
    options = {key: fields.pop(key) for key in OPTIONS if key in fields}
    return Model(
        name=name, title=name, runner="fake", processor="none", source="none", revision="1", options=options, **fields
    )


def numbers(values: Sequence[float], *, size: int = 1) -> Iterator[Prompt]:
    yield from (Prompt({"x": np.full(size, value, np.float32)}, cost=size) for value in values)


def never() -> None:
    """Nobody asks the job to stop."""


def values(states: Sequence[FakeState]) -> list[float]:
    return [float(state.prompt.data["x"][0]) for state in states]


def run_all(engine: BatchingEngine, model: Model, prompts: Iterator[Prompt]) -> list[float]:
    return [float(output.data["x"][0]) for output in engine.run(model, prompts, check=never)]


class Steps:
    """Takes notes of every batch; the device does not start one until it is told to `go`."""

    def __init__(self, *, fail: Callable[[list[float]], None] = lambda _: None) -> None:
        self.batches: list[list[float]] = []
        self.started = threading.Event()
        self.go = threading.Event()
        self._fail = fail

    def __call__(self, states: Sequence[FakeState]) -> None:
        self.batches.append(values(states))
        self.started.set()
        assert self.go.wait(WAIT_S)
        self._fail(values(states))


class Source:
    """Prompts one by one; `drawn` is set once the engine has asked for one more than it was given."""

    def __init__(self, values: Sequence[float], *, size: int = 1) -> None:
        self.count = 0
        self.drawn = threading.Event()
        self.closed = threading.Event()
        self._values, self._size = values, size

    def __iter__(self) -> Iterator[Prompt]:
        try:
            for prompt in numbers(self._values, size=self._size):
                self.count += 1
                yield prompt
            self.drawn.set()
        finally:
            self.closed.set()


class Job:
    """A job's thread, running until its outputs end."""

    def __init__(
        self,
        jobs: ThreadPoolExecutor,
        engine: BatchingEngine,
        model: Model,
        source: Source,
        check: Callable[[], None] = never,
        cost: int | None = None,
    ) -> None:
        self._outputs = engine.run(model, iter(source), check=check, cost=cost)
        self.result: Future[list[float]] = jobs.submit(self._take)

    def _take(self) -> list[float]:
        return [float(output.data["x"][0]) for output in self._outputs]

    def outputs(self) -> list[float]:
        return self.result.result(WAIT_S)
