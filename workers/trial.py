"""Trial of a load: a model is loaded, and warmed up with one prompt, in a process of its own that ends afterwards.

What would end the worker ends the trial: a crash in a library, `os._exit`, the OOM killer, a hang.

    python -P -m penstock.workers.trial DESCRIPTOR
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from pathlib import Path

import structlog

from penstock.errors import LoadFailed, ServiceError
from penstock.functions.confinement import end_with, go_first
from penstock.functions.wire import Wire
from penstock.models import Model
from penstock.observation.log import configure
from penstock.processors.registry import Registry
from penstock.workers.engine.base import Check
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.function.process import ModelProcess
from penstock.workers.engine.runners import Runners
from penstock.workers.processing import InThread
from penstock.workers.warmup import warm

#: Share of the time that a job may take which a load may take: a job that waits for it sees its failure.
_SHARE = 0.9
_TOO_LONG = "it took longer than nine tenths of the time that a job may take"
#: Bytes of memory that a trial's models may take: the worker has made room for the model.
_ENOUGH_BYTES = 2**62

log = structlog.get_logger(__name__)


def try_load(model: Model, check: Check) -> bool:
    """Load a model in a process of its own; return False if this raised an error, as the load here will do too.

    Raises `LoadFailed` if the process ended or took nine tenths of a job's time, `ServiceError` if it cannot be
    started, and what `check` raises. No process is left in any case. The kernel ends the process with this thread.
    """
    stops = list[BaseException]()

    def stopped() -> bool:
        try:
            check()
        except BaseException as error:  # of any kind: those of the process must not be taken for it
            stops.append(error)
        return bool(stops)

    begun, answer = time.monotonic(), "passed"
    with tempfile.TemporaryDirectory(prefix="trial-", ignore_cleanup_errors=True) as folder:
        try:
            process = ModelProcess(
                model.name, "penstock.workers.trial", python=Path(sys.executable), network=True, gpu=True,
                within_s=_SHARE * model.execution_timeout_s, too_long=_TOO_LONG, folder=Path.cwd(), env=os.environ,
                value={"folder": folder, "model": model.model_dump(mode="json")},
            )  # fmt: skip
        except OSError as error:
            raise ServiceError(f"no process can be started to load model {model.name!r}: {error.strerror}") from error
        try:
            process.wait_ready(stopped)
        except ServiceError as error:
            if stops:
                raise stops[0] from None
            if isinstance(error, LoadFailed):
                raise
            answer = "raised"
        else:
            process.kill("")  # at once: a library's clean-up may take long or crash
            process.end()
    log.info("model.tried", model=model.name, answer=answer, tried_s=round(time.monotonic() - begun, 3))
    return answer == "passed"


def main(descriptor: int) -> None:
    """Load the model that the worker at the other end of a socket sends, and answer."""
    wire = Wire(socket.socket(fileno=descriptor))
    init = wire.receive()
    end_with(init["parent"])
    go_first()
    configure("warning")
    try:
        rehearse(Model.model_validate(init["value"]["model"]), Path(init["value"]["folder"]))
    except Exception as error:
        traceback.print_exc()
        wire.send("failed", type=type(error).__name__, detail=str(error), place="", trace="", unservable=False)
    else:
        wire.send("ready")
    signal.pause()  # the worker ends this process


def rehearse(model: Model, folder: Path) -> None:
    """Load a model here and, if it has a warm-up, run its dummy request, prompt by prompt; raise every error."""
    engine = BatchingEngine(Runners.installed(), memory_bytes=_ENOUGH_BYTES)
    engine.load(model, check=lambda: None)
    if model.warm_up:
        alone = model.model_copy(update={"max_batch": 1})
        warm(alone, InThread(Registry.installed()), engine, folder / model.name, check=lambda: None)


if __name__ == "__main__":
    main(int(sys.argv[1]))
