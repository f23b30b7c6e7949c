"""The process of a built-in model: loads its runner and steps the batches that the worker sends, one after another.

    python -P -m penstock.workers.engine.hosted_child DESCRIPTOR

One thread receives a batch and admits its prompts while the main one steps the batch before.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
from collections.abc import Sequence
from time import monotonic
from traceback import format_exc
from typing import Any

from penstock.errors import DeviceLost, PenstockError, ProcessorFailed
from penstock.functions import confinement
from penstock.functions.wire import Closed, Wire, WireError
from penstock.models import Model
from penstock.processors.base import Prompt
from penstock.workers.engine.base import Runner, Step, TakesNumbers
from penstock.workers.engine.hosted.messages import answers_value, error_fields, prompt_of
from penstock.workers.engine.memory import CONTEXT_BYTES
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.steps import translated

#: Seconds that the thread which admits prompts may keep the interpreter from the device's loop; Python's own is 5 ms.
_SWITCH_S = 0.0005


class HostedProcess:
    """The runner of a model, and the batches that wait for it."""

    def __init__(self, wire: Wire, model: Model, runner: Runner) -> None:
        self._wire, self._model, self._runner = wire, model, runner
        #: Numbers of batches, and the states, or errors, of their prompts.
        self._batches = queue.SimpleQueue[tuple[int, Sequence[Any]] | None]()

    def serve(self) -> None:
        """Answer batches until `close`."""
        threading.Thread(target=self._listen, name="listen", daemon=True).start()
        while (batch := self._batches.get()) is not None:
            self._answer(*batch)
            del batch  # else its states would stay on the device until the next one

    def _listen(self) -> None:
        try:
            while (message := self._wire.receive())["kind"] != "close":
                admitted = [self._admit(prompt_of(value)) for value in message["value"]]
                self._batches.put((message["id"], admitted))
                del message, admitted  # else its arrays would live until the next one
            self._batches.put(None)
        except (Closed, WireError):
            os._exit(0)

    def _admit(self, prompt: Prompt) -> Any:
        """Return a prompt's state, or its error."""
        try:
            return self._runner.admit(prompt)
        except Exception as error:
            return translated(error, self._model, "preparation")

    def _answer(self, number: int, admitted: Sequence[Any]) -> None:
        begun = monotonic()
        try:
            steps = self._steps(admitted)
            self._wire.send("done", answers_value(steps), id=number, seconds=monotonic() - begun)
        except Closed:
            raise
        except Exception as error:
            ours = translated(error, self._model, "neural network")
            self._wire.send("error", id=number, seconds=monotonic() - begun, **error_fields(ours))
            if isinstance(ours, DeviceLost):
                os._exit(1)  # nothing on this device can be freed any more

    def _steps(self, admitted: Sequence[Any]) -> list[Step | PenstockError]:
        """Step the prompts that were admitted; return the answers and errors of all, in order."""
        for one in admitted:
            if isinstance(one, DeviceLost):
                raise one
        states = [one for one in admitted if not isinstance(one, PenstockError)]
        found = self._runner.step(states) if states else ()
        if len(found) != len(states):
            raise ProcessorFailed(f"the runner of model {self._model.name!r} did not answer every prompt of a batch")
        steps = iter(found)
        return [one if isinstance(one, PenstockError) else next(steps) for one in admitted]


def main(descriptor: int) -> None:
    """Serve the worker at the other end of a socket."""
    wire = Wire(socket.socket(fileno=descriptor))
    init = wire.receive()
    confinement.end_with(init["parent"])
    confinement.go_first()
    sys.setswitchinterval(_SWITCH_S)
    begun = monotonic()
    try:
        if (program := init["value"]["filter"]) is not None:
            confinement.refuse_sockets(program)
        model = Model.model_validate(init["value"]["model"])
        runner = Runners.installed().load_here(model)
    except BaseException as error:
        wire.send(
            "failed", type=type(error).__name__, detail=getattr(error, "detail", str(error)), place="",
            trace="" if isinstance(error, PenstockError) else format_exc(),
            unservable=isinstance(error, PenstockError),
        )  # fmt: skip
        return
    wire.send(
        "ready", load_s=monotonic() - begun, max_batch=runner.max_batch,
        memory_bytes=runner.memory_bytes + _context_bytes(),
        takes_numbers=isinstance(runner, TakesNumbers) and runner.takes_numbers,
    )  # fmt: skip
    HostedProcess(wire, model, runner).serve()
    runner.close()


def _context_bytes() -> int:
    """Return the device memory of this process beside its tensors."""
    if "torch" not in sys.modules:
        return 0
    import torch

    return CONTEXT_BYTES if torch.cuda.is_initialized() else 0  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main(int(sys.argv[1]))
