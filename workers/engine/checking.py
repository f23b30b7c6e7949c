"""Checks of models in a process of their environment, where a library takes many seconds and much memory to import.

One process checks all records of an environment (`checking_child`), so that the first alone waits for the import.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import IO

from penstock.errors import ModelUnavailable
from penstock.functions.confinement import environment_of
from penstock.models import Model
from penstock.workers.engine.function.process import here, interpreter_of

#: Seconds that the check of one model may take, its library's import included; `options.check_timeout_s` overrides it.
LIMIT_S = 300.0
#: Seconds in which a process that has closed its connection ends.
_ENDS_WITHIN_S = 10.0


def check_apart(model: Model) -> None:
    """Have the runner check a model in a process of the model's environment; raise `ModelUnavailable`."""
    limit_s = model.options.get("check_timeout_s", LIMIT_S)
    if isinstance(limit_s, bool) or not isinstance(limit_s, int | float) or limit_s <= 0:
        raise ModelUnavailable(f"options.check_timeout_s is {limit_s!r}: give a number of seconds above 0")
    if problem := shared(interpreter_of(model)).ask(here(model), float(limit_s)):
        raise ModelUnavailable(problem)


@cache
def shared(python: Path) -> Checking:
    """Return the checks in an environment, whose process ends with this one."""
    found = Checking(python, ("-P", "-m", "penstock.workers.engine.checking_child"))
    atexit.register(found.end)
    return found


class Checking:
    """A process that checks, started with the first question and after each one that ended it."""

    def __init__(self, python: Path, words: Sequence[str]) -> None:
        """Start nothing yet. The interpreter gets the words, and the descriptor of its connection as the last one."""
        self._python, self._words, self._owner = python, words, os.getpid()
        self._lock = threading.Lock()
        self._running: _Running | None = None

    def ask(self, model: Model, limit_s: float) -> str | None:
        """Return what is wrong with a model; None if nothing."""
        with self._lock:
            running = self._running = self._running or _Running(self._python, self._words)
            try:
                return running.ask(model, limit_s)
            finally:
                if running.ended:
                    self._running = None

    def end(self) -> None:
        """End the process, if there is one. A fork of the process that started it leaves it alone."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            if self._running is not None:
                self._running.end()
            self._running = None


class _Running:
    """A process that answers."""

    def __init__(self, python: Path, words: Sequence[str]) -> None:
        self._connection, theirs = Pipe()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (`end` closes it)
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [str(python), *words, str(theirs.fileno())], pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._errors,
                    start_new_session=True,  # so that all that it starts can be ended with it
                    # A check fetches nothing, whatever a network asks for while it is built.
                    env=environment_of(python, gpu=True) | {"HF_HUB_OFFLINE": "1"},
                )  # fmt: skip
        except OSError as error:
            self._connection.close()
            self._errors.close()
            raise ModelUnavailable(f"no process of {python} can be started: {error.strerror}") from error
        self.ended = False

    def ask(self, model: Model, limit_s: float) -> str | None:
        """Return the answer, or why there is none: then the process is ended."""
        try:
            self._connection.send_bytes(model.model_dump_json().encode())
            if not self._connection.poll(limit_s):
                self.end()
                return (
                    f"the check of model {model.name!r} did not end within {limit_s:g} s, and its process was killed; "
                    "options.check_timeout_s allows more"
                )
            return self._connection.recv_bytes().decode() or None
        except (EOFError, ConnectionError):  # it ends
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_ENDS_WITHIN_S)
            said = self._last_words()
            self.end()
            return f"the check of model {model.name!r} ended with {self._process.returncode}: {said}"
        except BaseException:  # Ctrl-C: a late answer would count for the next record
            self.end()
            raise

    def end(self) -> None:
        """Kill the process and all that it started."""
        self.ended = True
        with suppress(ProcessLookupError):  # nothing of it is left
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._connection.close()
        self._errors.close()

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()
        return next((line for line in reversed(lines) if line.strip()), "")[:200]
