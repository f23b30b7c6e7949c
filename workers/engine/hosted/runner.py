"""A runner in a model process: the worker sends it batches of prompts, and takes the answers.

The device's loop has an interpreter to itself there: a forward pass is several hundred launches, each of which would
wait for the threads of jobs (`docs/decisions/0117-pictures-in-model-processes.md`).
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from math import inf
from pathlib import Path
from typing import Any

import structlog

from penstock.errors import ModelProcessEnded, ModelUnavailable, PenstockError, ProcessorFailed
from penstock.functions.wire import Closed, Prepared, Unsendable, prepare
from penstock.models import Model
from penstock.processors.base import Prompt
from penstock.workers.engine.base import UNDER_WAY, Hosting, Step, Stepped, shapes_of
from penstock.workers.engine.function.driver import GRACE_S, Driver
from penstock.workers.engine.function.process import ModelProcess, here, interpreter_of
from penstock.workers.engine.hosted.messages import error_of, prompt_value, steps_of

log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class SentBatch:
    """A batch that waits, or that the process works on."""

    number: int
    states: Sequence[Prepared]
    wanted: Callable[[], bool]
    answer: Future[Stepped] = field(default_factory=Future)
    #: Time at which the process is killed, after nobody waits for the batch any more.
    kill_at: float = inf


class HostedRunner(Driver):
    """A loaded runner in a process of its own (`Queues`)."""

    def __init__(self, model: Model, hosting: Hosting, start: Callable[[], ModelProcess]) -> None:
        """Start the process and wait until the model is loaded; raise `ModelUnavailable` or a device's error."""
        super().__init__(model.name, start)
        self._hosting = hosting
        self._queue: deque[SentBatch] = deque()
        #: Batches that the process has, the one that it works on first.
        self._sent: dict[int, SentBatch] = {}
        self._numbers = count(1)
        #: True when the process has told that its device is lost.
        self._lost = False
        self.max_batch, self.memory_bytes, self.takes_numbers = model.max_batch, 0, False
        self.begin_driving()

    # The engine's side

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return the shapes and the values that a batch has in common, without asking the process."""
        if self._hosting.of_any_shape in prompt.data:
            return self._hosting.of_any_shape
        return shapes_of(prompt), *(repr(prompt.data.get(name)) for name in self._hosting.shared)

    def admit(self, prompt: Prompt) -> Prepared:
        """Return a prompt as its batch sends it; the process admits it while it works on the batch before.

        Raises `ProcessorFailed` for a value that is neither JSON nor an array.
        """
        try:
            prepared = prepare(prompt_value(prompt))
            json.dumps(prepared.value)  # else a message with other prompts would fail
        except (TypeError, ValueError) as error:
            raise ProcessorFailed(f"the model {self.name!r} failed: {error}") from error
        return prepared

    def begin(self, states: Sequence[Prepared], wanted: Callable[[], bool]) -> Future[Stepped]:
        """Send a batch, of which the process works on one after another."""
        batch = SentBatch(next(self._numbers), states, wanted)
        self._queue.append(batch)
        self.poke()
        if not self.is_driven:
            self.fail_all(ProcessorFailed(f"the model {self.name!r} failed: its process could not be driven"))
        return batch.answer

    def step(self, states: Sequence[Prepared]) -> Sequence[Step]:
        """Send a batch and wait for its answers; raise the first error of a prompt."""
        steps = self.begin(states, lambda: True).result().steps
        if failed := [step for step in steps if isinstance(step, PenstockError)]:
            raise failed[0]
        return [step for step in steps if not isinstance(step, PenstockError)]

    # The driver's side

    def has_work(self) -> bool:
        """Return True while batches wait."""
        return bool(self._queue)

    def began(self, process: ModelProcess, ready: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Note what the loaded runner takes."""
        self.max_batch, self.memory_bytes = int(ready["max_batch"]), int(ready["memory_bytes"])
        self.takes_numbers = bool(ready["takes_numbers"])

    def send(self, process: ModelProcess) -> None:
        """Send the next batches: so many that the process never waits for one."""
        self._end_unwanted(process)
        while self._queue and len(self._sent) < UNDER_WAY:
            batch = self._queue.popleft()
            if not batch.wanted():
                _fail(batch, ProcessorFailed("nobody waits for this batch"))
                continue
            self._sent[batch.number] = batch  # before it goes: the process may end meanwhile
            try:
                process.wire.send_prepared("batch", batch.states, id=batch.number)
            except Unsendable as error:
                _fail(self._sent.pop(batch.number), ProcessorFailed(f"the model {self.name!r} failed: {error}"))

    def _end_unwanted(self, process: ModelProcess) -> None:
        """End a process that goes on with a batch for which nobody waits."""
        batch, now = next(iter(self._sent.values()), None), time.monotonic()
        if batch is None or batch.wanted():
            return
        if batch.kill_at < now:
            process.kill("was ended: its batch went on after all of its jobs had ended")
        batch.kill_at = min(batch.kill_at, now + GRACE_S)

    def take(self, message: Mapping[str, Any], process: ModelProcess) -> None:  # noqa: ARG002
        """Hand the answers of a batch over."""
        kind, batch = message["kind"], self._sent[message["id"]]
        if kind == "done":
            steps = steps_of(message["value"])
            if len(steps) != len(batch.states):
                raise ValueError("answers")
            stepped = Stepped(steps, float(message["seconds"]))
            del self._sent[batch.number]
            batch.answer.set_result(stepped)
        elif kind == "error":
            error = error_of(message)
            if message["trace"]:
                log.error("engine.foreign_error", model=self.name, detail=error.detail, traceback=message["trace"])
            del self._sent[batch.number]
            self._lost = isinstance(error, ModelProcessEnded)
            _fail(batch, error)
            if self._lost:
                raise Closed  # it ends by itself: it must get no other batch
        else:
            raise ValueError(kind)

    def ended(self, how: str) -> None:
        """Fail the batch that the process worked on; the next process gets the others."""
        batches = list(self._sent.values())
        self._sent.clear()
        begun, self._lost = 0 if self._lost else 1, False  # a lost device has failed its batch already
        self._queue.extendleft(reversed(batches[begun:]))
        for batch in batches[:begun]:
            _fail(batch, ModelProcessEnded(f"the process of the model {self.name!r} {how.partition(';')[0]}"))

    def fail_all(self, error: PenstockError) -> None:
        """Fail all batches."""
        while self._queue:
            batch = self._queue.popleft()
            self._sent[batch.number] = batch
        for number in list(self._sent):
            _fail(self._sent.pop(number), error)


def _fail(batch: SentBatch, error: PenstockError) -> None:
    batch.answer.set_exception(error)


def load_hosted(model: Model, hosting: Hosting) -> HostedRunner:
    """Load a model in a process of its own, of its environment; raise `ModelUnavailable` or an error of the device."""
    record = here(model).model_dump(mode="json")

    def start() -> ModelProcess:
        try:
            return ModelProcess(
                model.name, "penstock.workers.engine.hosted_child", python=interpreter_of(model), within_s=inf,
                network=hosting.network, gpu=model.device != "cpu", folder=Path.cwd(), value={"model": record},
            )  # fmt: skip
        except OSError as error:
            raise ModelUnavailable(f"the process of the model {model.name!r} cannot be started: {error}") from error

    return HostedRunner(model, hosting, start)
