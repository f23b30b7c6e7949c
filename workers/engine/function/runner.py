"""The runner `function`: prompts are calls of a user's function, in a process of its own.

One thread, the driver, owns the process: it sends calls, takes answers, and starts the process anew after its end. The
engine's scheduler only hands over calls and takes what has come; it never waits.
"""

from __future__ import annotations

import json
import os
import queue
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from penstock.errors import ModelUnavailable, PenstockError, ProcessorFailed
from penstock.functions.nested import CALL, PLACES, flat, nested
from penstock.functions.wire import Closed, WireError
from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Continue, Done, Runner, Step
from penstock.workers.engine.function.process import ModelProcess

#: Seconds between two hand-overs of partial outputs, and two looks at the process's memory.
_PARTIALS_S, _LOOK_S = 0.05, 1.0
#: Seconds that a call may go on after all of its jobs were canceled.
GRACE_S = 5.0
#: Lines of a job that are kept.
_MAX_LINES = 1000

log = structlog.get_logger(__name__)


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


class FunctionRunner:
    """A function's process as a runner whose prompts another process computes (`Elsewhere`)."""

    def __init__(self, model: Model, start: Callable[[], ModelProcess]) -> None:
        """Start the process and wait until the model is loaded; raise `ModelUnavailable`."""
        signature = model.options["signature"]
        self._model, self._start = model, start
        self._batched = signature["batched"] is not None
        self._memory = signature["memory_bytes"]
        self.max_batch = model.max_batch
        self.memory_bytes = 0
        self._lock, self._poking = threading.Lock(), threading.Lock()
        self._queue: deque[Call] = deque()
        self._active: dict[int, Call] = {}
        self._number = 0
        self._closing = False
        self._wake: Callable[[], None] = lambda: None
        self._signal_read, self._signal = os.pipe()
        os.set_blocking(self._signal_read, False)
        os.set_blocking(self._signal, False)
        loaded = queue.SimpleQueue[ModelUnavailable | None]()
        self._driver = threading.Thread(target=self._drive, args=(loaded,), name=f"model-{model.name}", daemon=True)
        self._driver.start()
        if (failure := loaded.get()) is not None:
            raise failure

    # The engine's side

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return the arguments that all items of a call share."""
        if not self._batched:
            return None
        if any(place[0] == "arguments" for place in prompt.data[PLACES]):
            return object()  # arrays are not compared: a call of its own
        return json.dumps(prompt.data[CALL]["arguments"], sort_keys=True)

    def admit(self, prompt: Prompt) -> State:
        """Return the prompt's state."""
        return State(nested(prompt.data, CALL))

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
        self._poke()

    def step(self, states: Sequence[State]) -> list[Step]:
        """Begin the calls of new prompts, and hand over what has come; raise the error of a prompt."""
        failed = next((state.error for state in states if state.error is not None), None)
        if failed is not None:
            raise failed
        if not self._driver.is_alive():
            raise ProcessorFailed(f"the model {self._model.name!r} failed: its process could not be driven")
        if new := [state for state in states if state.call is None]:
            with self._lock:
                for group in [new] if self._batched else [[state] for state in new]:
                    self._queue.append(self._new_call(group))
            self._poke()
        return [self._handed(state) for state in states]

    def close(self) -> None:
        """End the process."""
        self._closing = True
        self._poke()
        self._driver.join(GRACE_S)

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

    def _poke(self) -> None:
        with self._poking, suppress(OSError):  # it is poked already, or closed
            os.write(self._signal, b".")

    # The driver's side

    def _drive(self, loaded: queue.SimpleQueue[ModelUnavailable | None]) -> None:
        """Start the process and drive it: the kernel ends a process with the thread that started it."""
        looked = told = 0.0
        process = None
        try:
            process = self._started(loaded.put)
            if process is None:
                return
            self.memory_bytes = process.resident_bytes()
            loaded.put(None)
            while not self._closing:
                if process is None and self._queue:
                    process = self._started(self._fail_all)
                if process is not None:
                    process = self._work(process)
                self._wait(process)
                now = time.monotonic()
                if process is not None and now - looked > _LOOK_S:
                    looked = now
                    self._look(process)
                if now - told > _PARTIALS_S and any(s.news for c in self._active.values() for s in c.states):
                    told = now
                    self._wake()
        except BaseException:
            log.exception("model.driver_failed", model=self._model.name)
            said = f"the model {self._model.name!r} failed: its process could not be driven"
            loaded.put(ModelUnavailable(said))
            self._fail_all(ProcessorFailed(said))
        finally:
            if process is not None:
                process.kill("")
                process.end()
            self._fail_all(ModelUnavailable(f"the model {self._model.name!r} was unloaded"))
            with self._poking:
                os.close(self._signal)
                self._signal = -1
            os.close(self._signal_read)

    def _wait(self, process: ModelProcess | None) -> None:
        files: list[Any] = [self._signal_read] + ([] if process is None else process.files)
        select.select(files, [], [], _PARTIALS_S if self._active else _LOOK_S)
        try:
            os.read(self._signal_read, 4096)
        except BlockingIOError:
            return

    def _started(self, failed: Callable[[ModelUnavailable], None]) -> ModelProcess | None:
        """Start the process and load the model; after a call of `failed` with the reason, return None."""
        try:
            process = self._start()
            process.wait_ready(lambda: self._closing)
        except ModelUnavailable as error:
            failed(error)
            return None
        return process

    def _work(self, process: ModelProcess) -> ModelProcess | None:
        """Send calls and take answers; return None after the process's end."""
        try:
            self._send(process)
            while select.select([process.wire], [], [], 0)[0]:
                self._take_checked(process.wire.receive(), process)
                self._send(process)
            process.drain()
            self._cancel(process)
        except (Closed, WireError) as error:
            if isinstance(error, WireError):
                process.kill(f"broke the protocol: {error}")
            self._ended(process)
            return None
        return process

    def _send(self, process: ModelProcess) -> None:
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
                self._fail(call, ProcessorFailed(f"the model {self._model.name!r} failed: {error}"))

    def _take_checked(self, message: Mapping[str, Any], process: ModelProcess) -> None:
        """Take a message; raise `WireError` for one without what its kind needs."""
        try:
            self._take(message, process)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise WireError(f"a message `{message['kind']}` that is not complete") from error

    def _take(self, message: Mapping[str, Any], process: ModelProcess) -> None:
        call = self._active.get(message.get("id") or 0)
        kind, value = message["kind"], message.get("value")
        if kind == "lines" and (call is None or len(call.states) > 1):
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
                state.news = True

    def _answer(self, call: Call, answers: Sequence[Any]) -> None:
        for state, answer in zip(call.states, answers, strict=True):
            state.output = Output(flat({"answer": answer, "text": state.text, "lines": state.lines}))
        self._finish(call)

    def _raised(self, call: Call, message: Mapping[str, Any]) -> None:
        """Tell the error of a call; each prompt of several is called again alone, to find the one that fails."""
        if len(call.states) > 1:
            self._again_alone(call)
            return
        [state] = call.states
        error = {name: message[name] for name in ("type", "detail", "place", "trace", "invalid", "wrong_answer")}
        state.output = Output(flat({"error": error, "text": state.text, "lines": state.lines}))
        self._finish(call)

    def _again_alone(self, call: Call) -> None:
        with self._lock:
            self._active.pop(call.number, None)
            kept = [state for state in call.states if not state.dropped]
            self._queue.extendleft(reversed([self._new_call([state]) for state in kept]))
        self._wake()

    def _ended(self, process: ModelProcess) -> None:
        how = process.end()
        log.warning("model.process_ended", model=self._model.name, pid=process.pid, how=how)
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

    def _look(self, process: ModelProcess) -> None:
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

    def _fail_all(self, error: PenstockError) -> None:
        with self._lock:
            calls = [*self._active.values(), *self._queue]
            self._queue.clear()
        for call in calls:
            self._fail(call, error)


def start_of(model: Model) -> Callable[[], ModelProcess]:
    """Return how a model's process is started."""
    signature = model.options["signature"]
    given = {"network": signature["network"], "secrets": signature["secrets"]}

    def start() -> ModelProcess:
        try:
            return ModelProcess(
                model.name, Path(model.source), given, python=Path(model.options["python"]),
                within_s=signature["timeout_s"], attribute=signature["attribute"],
            )  # fmt: skip
        except OSError as error:
            raise ModelUnavailable(f"the process of the model {model.name!r} cannot be started: {error}") from error

    return start


def load_function(model: Model) -> Runner:
    """Start a function's process and load it; raise `ModelUnavailable`."""
    return FunctionRunner(model, start_of(model))


def check_function(model: Model) -> None:
    """Check that the file still has the model; raise `ModelUnavailable`."""
    if "signature" not in model.options:
        raise ModelUnavailable(f"model {model.name!r}: name the Python file in `models`, not in a record")
