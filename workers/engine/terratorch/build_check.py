"""The check of networks by TerraTorch itself, in a process of its own: its import takes many seconds and much memory.

`python -m penstock.workers.engine.terratorch.build_check FD` reads records of models from a connection of
`multiprocessing`, and answers each with a sentence, or with nothing where TerraTorch builds the network. It ends when
the other end is closed. One process checks all records of a catalogue, so that the first alone waits for the import.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection, Pipe
from typing import IO

from penstock.errors import ModelUnavailable
from penstock.models import Model

#: Seconds that the check of one network may take, TerraTorch's import included; `options.check_timeout_s` overrides it.
LIMIT_S = 300.0
#: Seconds in which a process that has closed its connection ends.
_ENDS_WITHIN_S = 10.0
#: The descriptor of the connection follows.
_COMMAND = (sys.executable, "-P", "-m", "penstock.workers.engine.terratorch.build_check")


def check_build(model: Model) -> None:
    """Have TerraTorch build the model's network without the numbers of its weights; raise `ModelUnavailable`."""
    limit_s = model.options.get("check_timeout_s", LIMIT_S)
    if isinstance(limit_s, bool) or not isinstance(limit_s, int | float) or limit_s <= 0:
        raise ModelUnavailable(f"options.check_timeout_s is {limit_s!r}: give a number of seconds above 0")
    if problem := shared().ask(model, float(limit_s)):
        raise ModelUnavailable(problem)


@cache
def shared() -> BuildCheck:
    """Return the rehearsal of this process, which ends with it."""
    found = BuildCheck()
    atexit.register(found.end)
    return found


class BuildCheck:
    """A process with TerraTorch, started with the first question and after each one that ended it."""

    def __init__(self, command: Sequence[str] = _COMMAND) -> None:
        """Start nothing yet. The command gets the descriptor of its connection as its last word."""
        self._command, self._owner = command, os.getpid()
        self._lock = threading.Lock()
        self._running: _Running | None = None

    def ask(self, model: Model, limit_s: float) -> str | None:
        """Return the reason why TerraTorch cannot build the model's network; None if it can."""
        with self._lock:
            running = self._running = self._running or _Running(self._command)
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

    def __init__(self, command: Sequence[str]) -> None:
        self._connection, theirs = Pipe()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (`end` closes it)
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno())], pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._errors,
                start_new_session=True,  # so that all that it starts can be ended with it
                # A check fetches nothing, whatever a network asks for while it is built.
                env=os.environ | {"HF_HUB_OFFLINE": "1"},
            )  # fmt: skip
        self.ended = False

    def ask(self, model: Model, limit_s: float) -> str | None:
        """Return the answer, or why there is none: then the process is ended."""
        try:
            self._connection.send_bytes(model.model_dump_json().encode())
            if not self._connection.poll(limit_s):
                self.end()
                return (
                    f"TerraTorch's check of the network did not end within {limit_s:g} s, and its process was killed; "
                    "options.check_timeout_s allows more"
                )
            return self._connection.recv_bytes().decode() or None
        except (EOFError, ConnectionError):  # it ends
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_ENDS_WITHIN_S)
            said = self._last_words()
            self.end()
            return f"TerraTorch's check of the network ended with {self._process.returncode}: {said}"
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


def _main() -> None:
    # TerraTorch is not imported where only the caller is needed.
    from penstock.workers.engine.terratorch.checkpoint import Checkpoint
    from penstock.workers.engine.terratorch.network import outline

    with Connection(int(sys.argv[1])) as connection:
        while True:
            try:
                model = Model.model_validate_json(connection.recv_bytes())
            except EOFError:  # nobody asks any more
                return
            try:
                outline(Checkpoint.of(model))
                connection.send_bytes(b"")
            except ModelUnavailable as error:
                connection.send_bytes(error.detail.encode())


if __name__ == "__main__":
    _main()
