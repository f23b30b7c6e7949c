"""The runner `function`: prompts are calls of a user's function, in a process of its own.

The driver's thread sends calls and takes answers. The engine's scheduler only hands over calls and takes what has come;
it never waits.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from penstock.catalogue.functions import file_of
from penstock.errors import InvalidInput, ModelUnavailable, PenstockError, ProcessorFailed
from penstock.functions.nested import CALL, PLACES, flat, nested
from penstock.functions.wire import MAX_LINES
from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.processors.functions.processor import raised
from penstock.processors.prompt_names import PIXELS
from penstock.workers.engine.base import Continue, Done, Runner, Step, shapes_of
from penstock.workers.engine.device_class import require_device
from penstock.workers.engine.function.driver import GRACE_S, LOOK_S, Driver
from penstock.workers.engine.function.process import ModelProcess, interpreter_of
from penstock.workers.engine.memory import process_bytes

#: Seconds between two hand-overs of partial outputs.
_PARTIALS_S = 0.05
#: Lines of a job that are kept: those that its process sends, and the one that counts the rest.
_MAX_LINES = MAX_LINES + 1


@dataclass(eq=False, slots=True)
class State:
    """One prompt: the arguments of a call, or one item of it."""

    value: Mapping[str, Any]
    call: Call | None = None
    lines: list[str] = field(default_factory=list)
    text: str = ""
    done: float = 0.0
    #: Something new is to be handed over.
    news: bool = False
    output: Output | None = None
    error: PenstockError | None = None
    dropped: bool = False

    @property
    def ended(self) -> bool:
        """True when there is an answer or an error."""
        return self.output is not None or self.error is not None


@dataclass(eq=False, slots=True)
class Call:
    """A call of the function for one prompt, or for several of one shape."""

    number: int
    states: list[State]
    #: Time at which it is killed, after all of its prompts were dropped.
    kill_at: float | None = None

    @property
    def dropped(self) -> bool:
        """True if nobody waits for it."""
        return all(state.dropped for state in self.states)


class Calls(Protocol):
    """The form that prompts, answers and errors of calls have for a model's processor."""

    #: True if what a call prints and yields before its end is handed over.
    has_partials: bool

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return a key that is equal for prompts that may share a call."""
        ...

    def value(self, prompt: Prompt) -> Mapping[str, Any]:
        """Return the arguments of a call, and with batches its item."""
        ...

    def output(self, answer: Any, text: str, lines: Sequence[str]) -> Output:
        """Return the output of an answer; an error of its fields breaks the protocol."""
        ...

    def failed(self, error: Mapping[str, Any], text: str, lines: Sequence[str]) -> Output | PenstockError:
        """Return the error of a call: as an output for a processor that raises it, or to be raised here."""
        ...


class PlainCalls:
    """The calls of the processor `function`, which has its own prompts and raises the errors of calls itself."""

    has_partials = True

    def __init__(self, signature: Mapping[str, Any]) -> None:
        """Note if calls have several items."""
        self._batched = signature["batched"] is not None

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return the arguments that all items of a call share."""
        if not self._batched:
            return None
        if any(place[0] == "arguments" for place in prompt.data[PLACES]):
            return object()  # arrays are not compared: a call of its own
        return json.dumps(prompt.data[CALL]["arguments"], sort_keys=True)

    def value(self, prompt: Prompt) -> Mapping[str, Any]:
        """Return what the processor took apart."""
        found: Mapping[str, Any] = nested(prompt.data, CALL)
        return found

    def output(self, answer: Any, text: str, lines: Sequence[str]) -> Output:
        """Return the answer with all text and lines."""
        return Output(flat({"answer": answer, "text": text, "lines": lines}))

    def failed(self, error: Mapping[str, Any], text: str, lines: Sequence[str]) -> Output:
        """Return the error as an output."""
        return Output(flat({"error": error, "text": text, "lines": lines}))


class FunctionRunner(Driver):
    """A function's process as a runner whose prompts another process computes (`Elsewhere`)."""

    def __init__(self, model: Model, start: Callable[[], ModelProcess]) -> None:
        """Start the process and wait until the model is loaded; raise `ModelUnavailable`."""
        super().__init__(model.name, start)
        signature = model.options["signature"]
        self._told, self._on_gpu = 0.0, model.device == "cuda"
        self._batched = signature["batched"] is not None
        self._calls: Calls = (TileCalls if signature["raster"] else PlainCalls)(signature)
        self._memory = signature["memory_bytes"]
        self.max_batch = model.max_batch
        self.memory_bytes = 0
        self._lock = threading.Lock()
        self._queue: deque[Call] = deque()
        self._active: dict[int, Call] = {}
        self._number = 0
        self._wake: Callable[[], None] = lambda: None
        self.begin_driving()

    # The engine's side

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return a key that is equal for prompts that may share a call."""
        return self._calls.bucket(prompt)

    def admit(self, prompt: Prompt) -> State:
        """Return the prompt's state."""
        return State(self._calls.value(prompt))

    @property
    def free(self) -> int:
        """The prompts that may begin: none while the function works on a call of several."""
        with self._lock:
            under_way = sum(len(call.states) for call in (*self._queue, *self._active.values()))
        return (0 if under_way else self.max_batch) if self._batched else max(0, self.max_batch - under_way)

    def awake(self, state: State) -> bool:
        """Return True if there is something to hand over."""
        return state.news or state.ended

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake` when something is to be handed over or may begin."""
        self._wake = wake

    def drop(self, state: State) -> None:
        """Leave a prompt's answer out; its call ends when all of its prompts are dropped."""
        state.dropped = True
        self.poke()

    def step(self, states: Sequence[State]) -> list[Step]:
        """Begin the calls of new prompts, and hand over what has come; raise the error of a prompt."""
        failed = next((state.error for state in states if state.error is not None), None)
        if failed is not None:
            raise failed
        self.require_driver()
        if new := [state for state in states if state.call is None]:
            with self._lock:
                for group in [new] if self._batched else [[state] for state in new]:
                    self._queue.append(self._new_call(group))
            self.poke()
        return [self._handed(state) for state in states]

    def _new_call(self, states: list[State]) -> Call:
        self._number += 1
        call = Call(self._number, states)
        for state in states:
            state.call = call
        return call

    def _handed(self, state: State) -> Step:
        if state.output is not None:
            return Done(state.output)
        with self._lock:
            partial = Output(flat({"text": state.text, "lines": list(state.lines)}), partial=True)
            news, state.news = state.news, False
        return Continue(state, partial if news else None, state.done)

    # The driver's side

    @property
    def pause_s(self) -> float:
        """Hand partial outputs over while calls are active."""
        return _PARTIALS_S if self._active else LOOK_S

    def has_work(self) -> bool:
        """Return True while calls wait."""
        return bool(self._queue)

    def began(self, process: ModelProcess, ready: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Note the process's memory."""
        if not self.memory_bytes:
            self.memory_bytes = process_bytes(process.pid) if self._on_gpu else process.resident_bytes()

    def turned(self) -> None:
        """Hand partial outputs over."""
        now = time.monotonic()
        if now - self._told > _PARTIALS_S and any(s.news for c in self._active.values() for s in c.states):
            self._told = now
            self._wake()

    def send(self, process: ModelProcess) -> None:
        """Send calls, and ask those for which nobody waits to end."""
        self._cancel(process)
        while self._queue and (not self._active or not (self._batched or self.max_batch == 1)):
            with self._lock:
                call = self._queue.popleft()
                self._active[call.number] = call
            if call.dropped:
                self._finish(call)
                continue
            first = call.states[0].value
            try:
                if self._batched:
                    items = [state.value["item"] for state in call.states]
                    process.wire.send("call", {"arguments": first["arguments"], "items": items}, id=call.number)
                else:
                    process.wire.send("call", {"arguments": first["arguments"]}, id=call.number)
            except TypeError as error:
                self._fail(call, ProcessorFailed(f"the model {self.name!r} failed: {error}"))

    def take(self, message: Mapping[str, Any], process: ModelProcess) -> None:
        """Take a message of the process."""
        call = self._active.get(message.get("id") or 0)
        kind, value = message["kind"], message.get("value")
        if kind == "lines" and (call is None or len(call.states) > 1 or not self._calls.has_partials):
            process.log_lines(list(value or ()))
        elif call is None:
            return  # of a call that has ended
        elif kind == "done":
            self._answer(call, value or [])
        elif kind == "error":
            self._raised(call, message)
        else:
            [state] = call.states
            with self._lock:
                if kind == "lines":
                    state.lines = [*state.lines, *(value or ())][:_MAX_LINES]
                elif kind == "text":
                    state.text += str(value)
                elif kind == "progress" and message["total"] > 0:
                    state.done = min(1.0, max(state.done, message["done"] / message["total"]))
                state.news = self._calls.has_partials

    def _answer(self, call: Call, answers: Sequence[Any]) -> None:
        for state, answer in zip(call.states, answers, strict=True):
            state.output = self._calls.output(answer, state.text, state.lines)
        self._finish(call)

    def _raised(self, call: Call, message: Mapping[str, Any]) -> None:
        """Tell the error of a call; each prompt of several is called again alone, to find the one that fails."""
        if len(call.states) > 1:
            self._again_alone(call)
            return
        [state] = call.states
        error = {name: message[name] for name in ("type", "detail", "place", "trace", "invalid", "wrong_answer")}
        failed = self._calls.failed(error, state.text, state.lines)
        if isinstance(failed, PenstockError):
            self._fail(call, failed)
        else:
            state.output = failed
            self._finish(call)

    def _again_alone(self, call: Call) -> None:
        with self._lock:
            self._active.pop(call.number, None)
            kept = [state for state in call.states if not state.dropped]
            self._queue.extendleft(reversed([self._new_call([state]) for state in kept]))
        self._wake()

    def ended(self, how: str) -> None:
        """Call the functions of active calls again, each alone; one that was alone has failed."""
        for call in list(self._active.values()):
            if call.dropped:
                self._finish(call)
            elif len(call.states) > 1 or len(self._active) > 1:
                self._again_alone(call)
            else:
                self._fail(call, ProcessorFailed(f"the model failed: its process {how.partition(';')[0]}"))

    def _cancel(self, process: ModelProcess) -> None:
        """End calls for which nobody waits: ask, and kill the process after a grace."""
        now = time.monotonic()
        for call in list(self._active.values()):
            if call.dropped and call.kill_at is None:
                call.kill_at = now + GRACE_S
                process.wire.send("cancel", id=call.number)
            elif call.kill_at is not None and now > call.kill_at:
                process.kill("was ended: its call went on after the job was canceled")

    def look(self, process: ModelProcess) -> None:
        """End a process that takes more memory than it may."""
        if self._memory is not None and process.resident_bytes() > self._memory:
            process.kill(f"was ended: it took more than {self._memory:,} bytes (`memory_bytes` of its decorator)")

    def _fail(self, call: Call, error: PenstockError) -> None:
        for state in call.states:
            state.error = error
        self._finish(call)

    def _finish(self, call: Call) -> None:
        with self._lock:
            self._active.pop(call.number, None)
        self._wake()

    def fail_all(self, error: PenstockError) -> None:
        """Fail all calls."""
        with self._lock:
            calls = [*self._active.values(), *self._queue]
            self._queue.clear()
        for call in calls:
            self._fail(call, error)


def start_of(model: Model) -> Callable[[], ModelProcess]:
    """Return how a model's process is started."""
    signature = model.options["signature"]
    value = {
        "source": model.source if model.function is not None else "", "arguments": model.options.get("arguments", {}),
    }  # fmt: skip

    def start() -> ModelProcess:
        if missing := [name for name in signature["secrets"] if name not in os.environ]:
            raise ModelUnavailable(
                f"the model {model.name!r} needs {', '.join(missing)}, which its decorator names in `secrets`, "
                "in the environment of the worker"
            )
        try:
            return ModelProcess(
                model.name, "penstock.functions.child", python=interpreter_of(model),
                within_s=signature["timeout_s"], network=signature["network"], secrets=signature["secrets"],
                gpu=model.device.startswith("cuda"), value=value, file=str(file_of(model)),
                attribute=signature["attribute"],
            )  # fmt: skip
        except OSError as error:
            raise ModelUnavailable(f"the process of the model {model.name!r} cannot be started: {error}") from error

    return start


def load_function(model: Model) -> Runner:
    """Start a function's process and load it; raise `ModelUnavailable`."""
    require_device(model)
    return FunctionRunner(model, start_of(model))


def check_function(model: Model) -> None:
    """Check that the record is that of a function, and the machine's device; raise `ModelUnavailable`."""
    if "signature" not in model.options:
        raise ModelUnavailable(f'model {model.name!r}: name its function: `function = "FILE.py:NAME"`')
    require_device(model)


class TileCalls:
    """Calls of tiles: a prompt is one tile, float32 (bands, H, W), and an output the arrays that its answer became."""

    has_partials = False

    def __init__(self, signature: Mapping[str, Any]) -> None:
        """Read the name of the parameter, and the bands of all dates."""
        [self._name], self._batched = signature["parameters"], signature["batched"] is not None
        options = signature["raster"]["options"]
        self._bands = len(options["bands"]) * options.get("dates", 1)

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return the tile's shape: the tiles of a call have one."""
        return shapes_of(prompt)

    def value(self, prompt: Prompt) -> Mapping[str, Any]:
        """Return the arguments of a call, or one item of it; raise `InvalidInput` for a tile of other bands."""
        pixels: Any = prompt.data[PIXELS]
        if pixels.ndim != 3 or len(pixels) != self._bands:
            raise InvalidInput(f"the function takes {self._bands} bands, the prompt has the shape {pixels.shape}")
        return {"arguments": {}, "item": pixels} if self._batched else {"arguments": {self._name: pixels}}

    def output(self, answer: Mapping[str, Any], text: str, lines: Sequence[str]) -> Output:  # noqa: ARG002  (none)
        """Return the output of an answer; raise `TypeError` for one without arrays."""
        if not all(isinstance(array, np.ndarray) for array in answer.values()):
            raise TypeError("an answer to a tile has arrays only")
        return Output(dict(answer))

    def failed(self, error: Mapping[str, Any], text: str, lines: Sequence[str]) -> PenstockError:  # noqa: ARG002
        """Return the error of a call, and log its place."""
        return raised(error)
