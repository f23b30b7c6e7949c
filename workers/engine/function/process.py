"""A model process: its start, its environment, and what is known of its end."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import structlog

from penstock.errors import DeviceLost, LoadFailed, ModelUnavailable, OutOfMemory, ServiceError
from penstock.functions.confinement import environment_of, socket_filter
from penstock.functions.wire import Closed, Wire, WireError
from penstock.models import Model

#: Seconds that one send or receive may take once it has begun.
_STALL_S = 30.0
#: Seconds that a process may take to end by itself.
_END_S = 1.0
#: Seconds between two looks at the time while a message is waited for.
_LOOK_S = 0.2
#: Last lines of a process that its end is told with.
_LAST_LINES = 5
#: Lines of one second that are logged, and reads of the pipe at a time.
_MOST_LOGGED, _MOST_READS = 100, 64
#: Reason for which a process ends whose runner is closed.
_CLOSED = "was ended while it loaded"
#: Errors of devices by their names; any other error of a load is one of the model.
_OF_DEVICES: Mapping[str, type[ServiceError]] = {"DeviceLost": DeviceLost, "OutOfMemory": OutOfMemory}
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

log = structlog.get_logger(__name__)


class ModelProcess:
    """A running model process, after `init` was sent."""

    def __init__(
        self,
        model: str,
        module: str,
        *,
        python: Path,
        within_s: float,
        network: bool | Sequence[str] = False,
        secrets: Sequence[str] = (),
        gpu: bool = False,
        folder: Path | None = None,
        env: Mapping[str, str] = MappingProxyType({}),
        too_long: str = "it took too long to load (`timeout_s` of its decorator)",
        value: Mapping[str, Any] = MappingProxyType({}),
        **init: Any,
    ) -> None:
        """Start `module` in a process of the environment of `python`, and send it `init` with these fields and `value`.

        It may take `within_s` to load the model, and use the `network` (True: all of it), the variables `secrets` of
        the environment, those of `env` and, with `gpu`, the device. It runs in `folder`, else in one of its own.
        `too_long` is the reason of its end after `within_s`. Raises `OSError`.
        """
        self._model = model
        self._load_by, self._too_long = time.monotonic() + within_s, too_long
        self._second, self._logged, self._writes = 0, 0, True
        self._folder = tempfile.TemporaryDirectory(prefix="model-", ignore_cleanup_errors=True)
        given = environment_of(python, network=bool(network), secrets=secrets, gpu=gpu)
        ours, theirs = socket.socketpair()
        self._pipe, out = os.pipe()
        os.set_blocking(self._pipe, False)
        try:
            self._process = subprocess.Popen(
                [str(python), "-P", "-m", module, str(theirs.fileno())],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                cwd=folder or self._folder.name, env={**given, **env}, start_new_session=True,
            )  # fmt: skip
        except OSError:
            ours.close()
            os.close(self._pipe)
            self._folder.cleanup()
            raise
        finally:
            theirs.close()
            os.close(out)
        self.wire = Wire(ours, stall_s=_STALL_S)
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._rest = b""
        #: Reason for which the worker itself ended the process; empty if it did not.
        self.killed_for = ""
        program = None if network else socket_filter()
        hosts = [] if isinstance(network, bool) else list(network)
        with suppress(Closed):
            self.wire.send("init", {**value, "filter": program}, hosts=hosts, parent=os.getpid(), **init)

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    @property
    def files(self) -> list[Any]:
        """The ends of the process's socket and output, to wait for."""
        return [self.wire, self._pipe] if self._writes else [self.wire]

    def resident_bytes(self) -> int:
        """Return the bytes of memory that the process holds; 0 if it has ended."""
        with suppress(OSError, ValueError, IndexError):
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE_BYTES
        return 0

    def drain(self) -> None:
        """Log what the process wrote past Python."""
        with suppress(BlockingIOError, OSError):
            for _ in range(_MOST_READS):
                if not (data := os.read(self._pipe, 65536)):
                    self._writes = False  # it has closed its output
                    return
                *lines, self._rest = (self._rest + data).split(b"\n")
                self._rest = self._rest[:4000]
                self.log_lines([line.decode("utf-8", "replace")[:4000] for line in lines])

    def log_lines(self, lines: list[str]) -> None:
        """Write lines to the operator's log, and keep the last ones for the process's end."""
        kept = [line for line in lines if line.strip()]
        self._lines.extend(kept)
        if (second := int(time.monotonic())) != self._second:
            if self._logged > _MOST_LOGGED:
                log.info("model.lines_left_out", model=self._model, lines=self._logged - _MOST_LOGGED)
            self._second, self._logged = second, 0
        for line in kept[: max(0, _MOST_LOGGED - self._logged)]:
            log.info("model.line", model=self._model, line=line)
        self._logged += len(kept)

    def kill(self, reason: str) -> None:
        """End the process at once, with all that it started."""
        self.killed_for = self.killed_for or reason
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> str:
        """Wait for the process's end and free what it had; return how it ended, with its last lines."""
        self.wire.shut()
        self.wire.close()
        ended = os.pidfd_open(self.pid)
        try:
            select.select([ended], [], [], _END_S)
        finally:
            os.close(ended)
        self.kill("")  # also what it started: until it is waited for, no other group can have its number
        code = self._process.wait()
        self.drain()
        with suppress(OSError):
            os.close(self._pipe)
        self._pipe = -1
        self._folder.cleanup()
        how = self.killed_for or ending(code)
        return how + (f"; its last lines: {' | '.join(self._lines)}" if self._lines else "")

    def wait_ready(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        """Wait until the model is loaded; return the message `ready`.

        Raises `ModelUnavailable`, or the error of a device, and ends the process, if the model cannot be loaded or
        `stopped` returns True: `LoadFailed` if the process ended by itself, or took too long.
        """
        self._stopped = stopped
        while True:
            try:
                message = self._next()
            except (Closed, WireError):
                how, lines = self.end().partition("; its last lines: ")[0], self._lines
                if how == _CLOSED:
                    raise ModelUnavailable(f"the process of the model {self._model!r} {how}") from None
                raise LoadFailed.of(self._model, how, tuple(lines)) from None
            if message["kind"] == "ready":
                return message
            if message["kind"] == "lines":
                self.log_lines(message["value"])
            if message["kind"] == "failed":
                self.log_lines(message["trace"].splitlines())
                self.end()
                raise failure(self._model, message)

    def _next(self) -> dict[str, Any]:
        """Return the next message, however long it takes to come: a model may load for minutes."""
        while True:
            with suppress(TimeoutError):
                return self.receive(_LOOK_S)
            if time.monotonic() > self._load_by:
                self.kill(f"was ended: {self._too_long}")
            elif self._stopped():
                self.kill(_CLOSED)

    def receive(self, within_s: float) -> dict[str, Any]:
        """Return the next message; raise `TimeoutError` without one in time, and the errors of `Wire.receive`."""
        until = time.monotonic() + within_s
        while (left_s := until - time.monotonic()) > 0:
            if self.wire in select.select(self.files, [], [], min(_LOOK_S, left_s))[0]:
                return self.wire.receive()
            self.drain()
        raise TimeoutError


def interpreter_of(model: Model) -> Path:
    """Return the interpreter of a model's environment."""
    return Path(model.environment or sys.executable)


def here(model: Model) -> Model:
    """Return the record as a process of the model's environment gets it: for it this environment is its own."""
    return model.model_copy(update={"environment": None, "dependencies": (), "own_process": False})


def failure(model: str, message: Mapping[str, Any]) -> ServiceError:
    """Return the error of a file, class or network that could not be loaded."""
    if message["unservable"]:
        return _OF_DEVICES.get(message["type"], ModelUnavailable)(str(message["detail"]))
    place = f" ({message['place']})" if message["place"] else ""
    return ModelUnavailable(
        f"the model {model!r} raised {message['type']} while it was loaded: {message['detail']}{place}"
    )


def ending(code: int) -> str:
    """Return how a process ended, by its exit status; negative: by a signal."""
    if code == -signal.SIGKILL:
        return "was ended by SIGKILL, as when memory runs out"
    return f"was ended by {_signal(-code)}" if code < 0 else f"ended with the exit status {code}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"the signal {number}"
