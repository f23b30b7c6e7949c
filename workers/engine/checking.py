"""Checks of models in a process of their environment, where a library takes many seconds and much memory to import.

One process checks all records of an environment (`checking_child`), so that the first alone waits for the import.
"""

from __future__ import annotations

import atexit
import os
import threading
from functools import cache
from math import inf
from pathlib import Path

from penstock.errors import ModelUnavailable
from penstock.functions.wire import Closed, WireError
from penstock.models import Model
from penstock.workers.engine.function.process import ModelProcess, here, interpreter_of

#: Seconds that the check of one model may take, its library's import included; `options.check_timeout_s` overrides it.
LIMIT_S = 300.0


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
    found = Checking(python)
    atexit.register(found.end)
    return found


class Checking:
    """A process that checks, started with the first question and after each one that ended it."""

    def __init__(self, python: Path, module: str = "penstock.workers.engine.checking_child") -> None:
        """Start nothing yet."""
        self._python, self._module, self._owner = python, module, os.getpid()
        self._lock = threading.Lock()
        self._process: ModelProcess | None = None

    def ask(self, model: Model, limit_s: float) -> str:
        """Return what is wrong with a model; empty if nothing."""
        with self._lock:
            process = self._process = self._process or self._started()
            try:
                process.wire.send("check", model.model_dump(mode="json"))
                return str(process.receive(limit_s)["value"])
            except (Closed, WireError):
                self._process = None
                return f"the check of model {model.name!r} {process.end()}"
            except BaseException as error:
                # After Ctrl-C, too: a late answer would count for the next record.
                self._process = None
                process.kill("")
                process.end()
                if not isinstance(error, TimeoutError):
                    raise
                return (
                    f"the check of model {model.name!r} did not end within {limit_s:g} s, and its process was killed; "
                    "options.check_timeout_s allows more"
                )

    def end(self) -> None:
        """End the process, if there is one. A fork of the process that started it leaves it alone."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            if self._process is not None:
                self._process.kill("")
                self._process.end()
            self._process = None

    def _started(self) -> ModelProcess:
        try:
            # A check fetches nothing, whatever a network asks for while it is built.
            return ModelProcess(
                "check", self._module, python=self._python, within_s=inf, network=True, gpu=True,
                folder=Path.cwd(), env={"HF_HUB_OFFLINE": "1"},
            )  # fmt: skip
        except OSError as error:
            raise ModelUnavailable(f"no process of {self._python} can be started: {error.strerror}") from error
