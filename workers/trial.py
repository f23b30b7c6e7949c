"""Trial of a load: a model is loaded, and warmed up with one prompt, in a process of its own that ends afterwards.

What would end the worker ends the trial: a crash in a library, `os._exit`, the OOM killer, a hang.

    python -P -m penstock.workers.trial DESCRIPTOR < REQUEST       (writes `passed` or `raised` to the descriptor)
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import deque
from contextlib import ExitStack, suppress
from pathlib import Path

import structlog

from penstock.errors import LoadFailed, ServiceError
from penstock.functions.confinement import end_with, go_first
from penstock.models import Model
from penstock.observation.log import configure
from penstock.processors.registry import Registry
from penstock.workers.engine.base import Check
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.function.process import ending
from penstock.workers.engine.runners import Runners
from penstock.workers.processing import InThread
from penstock.workers.warmup import warm

#: Seconds between two calls of the check.
_CHECK_S = 0.2
#: Last lines that are kept, and characters of each.
_LAST_LINES, _LINE_CHARS = 5, 300
#: Share of the time that a job may take which a load may take: a job that waits for it sees its failure.
_SHARE = 0.9
_PASSED, _RAISED = b"passed", b"raised"
#: Bytes of memory that a trial's models may take: the worker has made room for the model.
_ENOUGH_BYTES = 2**62

log = structlog.get_logger(__name__)


def try_load(model: Model, check: Check) -> bool:
    """Load a model in a process of its own; return False if this raised an error, as the load here will do too.

    Raises `LoadFailed` if the process ended or took nine tenths of a job's time, `ServiceError` if it cannot be
    started, and what `check` raises. No process is left in any case. The kernel ends the process with this thread.
    """
    begun = time.monotonic()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="trial-", ignore_cleanup_errors=True))
        try:
            trial = stack.enter_context(_Trial(model, folder))
        except OSError as error:
            raise ServiceError(f"no process can be started to load model {model.name!r}: {error.strerror}") from error
        how = trial.wait(begun + _SHARE * model.execution_timeout_s, check)
    tried_s = round(time.monotonic() - begun, 3)
    log.info("model.tried", model=model.name, answer=trial.answer.decode() or how, tried_s=tried_s)
    if trial.answer not in (_PASSED, _RAISED):
        raise LoadFailed.of(model.name, how, tuple(trial.lines))
    return trial.answer == _PASSED


class _Trial:
    """A running trial; leaving the block ends it with all that it started."""

    def __init__(self, model: Model, folder: str) -> None:
        """Start the process; raise `OSError`."""
        self.answer, self.lines, self._rest = b"", deque[str](maxlen=_LAST_LINES), b""
        self._stack = ExitStack()
        request = {"parent": os.getpid(), "folder": folder, "model": model.model_dump(mode="json")}
        with ExitStack() as theirs:
            told = theirs.enter_context(tempfile.TemporaryFile())
            told.write(json.dumps(request).encode())
            told.seek(0)
            self._answers, answer = self._pipe(theirs)
            self._output, output = self._pipe(theirs)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "penstock.workers.trial", str(answer)], pass_fds=[answer], stdin=told,
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        self._ended = os.pidfd_open(self._process.pid)
        self._stack.callback(os.close, self._ended)

    def __enter__(self) -> _Trial:
        return self

    def __exit__(self, *_: object) -> None:
        """End the process and its group, whose number is its own until it was waited for."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._stack.close()

    def wait(self, until: float, check: Check) -> str:
        """Wait for the answer or the end of the process, until a time of the monotonic clock; return how it ended."""
        while True:
            ready = select.select([self._answers, self._output, self._ended], [], [], _CHECK_S)[0]
            check()
            self._read_lines()
            if self._answers in ready:
                with suppress(BlockingIOError):
                    self.answer = os.read(self._answers, 16)
            if self.answer:
                return ""
            if self._ended in ready:
                return self._end_of_process()
            if time.monotonic() > until:
                return "was ended: it took longer than nine tenths of the time that a job may take"

    def _end_of_process(self) -> str:
        code = self._process.wait()
        self._read_lines()
        if self._rest.strip():
            self._keep(self._rest)
        return ending(code) + (", as when memory runs out" if code == -signal.SIGKILL else "")

    def _read_lines(self) -> None:
        with suppress(BlockingIOError):
            while data := os.read(self._output, 65536):
                *lines, self._rest = (self._rest + data).split(b"\n")
                self._rest = self._rest[-4 * _LINE_CHARS :]
                for line in lines:
                    self._keep(line)
                if len(data) < 65536:
                    return

    def _keep(self, line: bytes) -> None:
        if text := line.decode("utf-8", "replace").strip():
            self.lines.append(text[:_LINE_CHARS])

    def _pipe(self, theirs: ExitStack) -> tuple[int, int]:
        ours, other = os.pipe()
        os.set_blocking(ours, False)
        self._stack.callback(os.close, ours)
        theirs.callback(os.close, other)
        return ours, other


def main() -> None:
    """Do what the request on the standard input says, and answer."""
    request = json.load(sys.stdin)
    end_with(request["parent"])
    go_first()
    configure("warning")
    answer = _PASSED
    try:
        rehearse(Model.model_validate(request["model"]), Path(request["folder"]))
    except Exception:
        traceback.print_exc()
        answer = _RAISED
    os.write(int(sys.argv[1]), answer)
    signal.pause()  # the worker ends this process: a library's clean-up may take long or crash


def rehearse(model: Model, folder: Path) -> None:
    """Load a model here and, if it has a warm-up, run its dummy request, prompt by prompt; raise every error."""
    engine = BatchingEngine(Runners.installed(), memory_bytes=_ENOUGH_BYTES)
    engine.load(model, check=lambda: None)
    if model.warm_up:
        alone = model.model_copy(update={"max_batch": 1})
        warm(alone, InThread(Registry.installed()), engine, folder / model.name, check=lambda: None)


if __name__ == "__main__":
    main()
