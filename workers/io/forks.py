"""The worker's handles on its fork server, on the template of each model, and on each IO process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from penstock.errors import MediaUnreadable, OutOfMemory, PenstockError, ProcessorFailed, ServiceError
from penstock.functions.wire import Closed, Memory, Tick, Wire, WireError
from penstock.workers.io import sandbox
from penstock.workers.io.ends import end_to_process
from penstock.workers.job_log import LineMemory

#: Seconds that the fork server has to import modules, and that a process has to fork or to end another.
START_S, ANSWER_S = 120.0, 30.0
#: Seconds that the fork server has to end when its worker closes it.
CLOSE_S = 10.0
#: Seconds that a process that shut its socket has to end by itself; its exit status shows the cause.
GRACE_S = 1.0
#: Bytes of one log line of an IO process's output; a longer line is split.
MAX_LINE_BYTES = 8192

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ForkOptions:
    """The options of the fork server and of IO processes."""

    #: Bytes that a process may allocate beyond its initial memory.
    memory_bytes: int
    #: Modules to import before forking, besides Penstock's own.
    preload: Sequence[str] = ()
    #: Processors besides the installed ones, as `name -> module:class`.
    processors: Mapping[str, str] = field(default_factory=dict)
    log_level: str = "info"
    #: True to log text for people instead of JSON.
    log_text: bool = False
    #: Bytes of one file that a process writes.
    file_bytes: int = 16 * 2**30
    #: True to use a process for several jobs of one tenant and model; False for a process of its own for each job.
    reuse: bool = True
    #: True to let processors start processes; then each job has an IO process of its own.
    programs: bool = False
    #: Folders that no process may read, even where they lie in the folder of a model.
    private: Sequence[Path] = ()
    #: Parts of the sandbox (`sandbox.PARTS`) to do without, as on a machine that lacks them.
    lacking: Sequence[str] = ()


class ForkServer:
    """A running fork server. Safe to use from many threads."""

    def __init__(self, options: ForkOptions, python: Path = Path(sys.executable)) -> None:
        """Start the fork server in the environment of an interpreter; it gets ready in the background."""
        self._options = options
        ours, its = socket.socketpair()
        self._asking = Asking(end_to_process(ours))
        self._ready = threading.Lock()
        self._parts: frozenset[str] | None = None
        with its, os.fdopen(os.dup(2)) as log_file:
            descriptors = [its.fileno(), log_file.fileno()]
            self._process = subprocess.Popen(
                [str(python), "-m", "penstock.workers.io.server", *map(str, descriptors)],
                env=sandbox.environment(python),
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal goes to the worker alone
            )
        threading.Thread(target=_relay, args=(self._process,), name="io-output", daemon=True).start()
        self._asking.wire.send(
            "configure",
            memory_bytes=options.memory_bytes,
            file_bytes=options.file_bytes,
            programs=options.programs,
            private=[str(path) for path in options.private],
            preload=list(options.preload),
            processors=dict(options.processors),
            log_level=options.log_level,
            log_text=options.log_text,
            lacking=list(options.lacking),
        )

    @property
    def lost(self) -> bool:
        """True when the fork server no longer responds and must be replaced."""
        return self._asking.lost

    @property
    def pid(self) -> int:
        """The fork server's process id."""
        return self._process.pid

    @property
    def parts(self) -> frozenset[str]:
        """The parts of the sandbox that this machine has. Waits until the fork server is ready."""
        with self._ready:
            if self._parts is None:
                ready = self._asking.receive(START_S)
                self._parts = frozenset(ready["parts"])
                missing = sandbox.missing(self._parts)
                log.info("io.ready", pid=self.pid, network=ready.get("network"), missing=missing)
            return self._parts

    def fork(self, model: Mapping[str, Any]) -> Template:
        """Return a new template of a model, given as JSON; raise `ServiceError` if none can be started."""
        parts = self.parts  # waits until the fork server is ready
        pid, end = self._asking.fork(START_S, processor=str(model.get("processor")))
        template = Template(self._asking, pid, end_to_process(end), self._options.memory_bytes, parts)
        with suppress(Closed):  # noticed by the first request
            template.wire.send("model", model=dict(model))
        return template

    def preload(self, processor: str) -> None:
        """Import what a processor of Penstock needs, so that its first template is there soon; `ServiceError`."""
        if self.parts:  # waits until the fork server is ready
            self._asking.preload(processor)

    def log_to(self, descriptor: int) -> None:
        """Have the fork server, and all processes that it forks from now on, log to a file; `ServiceError`."""
        self._asking.log_to(descriptor)

    def close(self) -> None:
        """End the fork server and all its processes."""
        if self.lost:
            self._process.kill()  # it may hang
        self._asking.close()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(CLOSE_S)


class Asking:
    """The requests to a process that forks others: one at a time, from any thread."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        #: True when the process no longer responds and must be replaced.
        self.lost = False
        self._lock = threading.Lock()

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """Return the next message; raise `ServiceError` if none arrives."""
        with self._lock:
            return self._receive(timeout_s)

    def fork(self, timeout_s: float, **fields: Any) -> tuple[int, socket.socket]:
        """Request a fork; return its process id and our end of a socket to it."""
        ours, its = socket.socketpair()
        try:
            with its:
                return int(self._ask("fork", its.fileno(), timeout_s=timeout_s, **fields)["pid"]), ours
        except BaseException:
            ours.close()
            raise

    def end(self, pid: int, grace_s: float) -> tuple[int | None, bool]:
        """Kill a fork unless it ends by itself within `grace_s`.

        Returns the wait status, None if it is unknown, and True if the process had to be killed.
        """
        try:
            answer = self._ask("end", pid=pid, grace_s=grace_s)
        except ServiceError:
            return None, False
        return answer["status"], answer["killed"]

    def preload(self, processor: str) -> None:
        """Have the process import a processor of Penstock."""
        self._ask("preload", timeout_s=START_S, processor=processor)

    def log_to(self, descriptor: int) -> None:
        """Have the process, and those that it forks from now on, log to a file."""
        self._ask("log", descriptor)

    def close(self) -> None:
        """Shut the connection down, which ends the process."""
        self.lost = True
        self.wire.shut()
        with self._lock:
            self.wire.close()

    def _ask(
        self, kind: str, descriptor: int | None = None, *, timeout_s: float = ANSWER_S, **fields: Any
    ) -> dict[str, Any]:
        with self._lock:
            if self.lost:
                raise ServiceError("the IO processes have ended")
            try:
                self.wire.send(kind, descriptor=descriptor, tick=_until(ANSWER_S), **fields)
            except (Closed, TimeoutError) as error:
                self.lost = True
                raise ServiceError("the IO processes have ended") from error
            return self._receive(timeout_s)

    def _receive(self, timeout_s: float) -> dict[str, Any]:
        try:
            return self.wire.receive(tick=_until(timeout_s))
        except (Closed, TimeoutError, WireError) as error:
            self.lost = True
            raise ServiceError("the IO processes have ended") from error


class Forked:
    """A process that another one forked for this worker."""

    def __init__(self, parent: Asking, pid: int, wire: Wire) -> None:
        self.pid = pid
        self.wire = wire
        #: The worker's reason to end it, if it has one.
        self.doom: str | None = None
        self._parent = parent
        self._end: tuple[int | None, bool] = None, False
        self._ended = False
        self._death: PenstockError | None = None
        self._lock, self._dying = threading.Lock(), threading.Lock()

    def end(self, grace_s: float = 0.0) -> tuple[int | None, bool]:
        """End the process, if it lives; see `Asking.end`. Waiting receivers raise `Closed`."""
        with self._lock:
            if not self._ended:
                self._ended = True
                self._end = self._parent.end(self.pid, grace_s)
                self.wire.shut()
        return self._end

    def close(self) -> None:
        """End the process and free its resources here. The object must not be used afterwards."""
        self.end()
        self.wire.close()

    def death(self, doing: str) -> PenstockError:
        """Return the cause of a process's unexpected end. If two threads call this, the first call's `doing` counts."""
        with self._dying:
            self._death = self._death or self._cause(doing)
        return self._death

    @property
    def ended(self) -> bool:
        """True when the worker has ended the process."""
        return self._ended

    def _cause(self, doing: str) -> PenstockError:
        status, killed = self.end(GRACE_S)
        log.warning("io.ended", pid=self.pid, status=status, killed=killed, doing=doing)
        if self.doom is not None:
            return ProcessorFailed(f"the model's processor {self.doom} while {doing}")
        if status is None:
            return ServiceError(f"the processor's process was lost while {doing}")
        if killed:
            return ProcessorFailed(f"the model's processor closed its connection while {doing}")
        if not os.WIFSIGNALED(status):
            code = os.waitstatus_to_exitcode(status)
            return ProcessorFailed(f"the model's processor ended its process (exit code {code}) while {doing}")
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL:
            return OutOfMemory(f"the processor's process was killed, probably for lack of memory, while {doing}")
        if number == signal.SIGPROF:
            return MediaUnreadable("The file takes far longer to decode than others of its size: it is damaged.")
        return ProcessorFailed(f"the model's processor crashed ({_name(number)}) while {doing}")


class Template(Forked):
    """A process that has loaded a model's processor and forks IO processes. Safe to use from many threads."""

    def __init__(self, parent: Asking, pid: int, wire: Wire, memory_bytes: int, parts: frozenset[str]) -> None:
        super().__init__(parent, pid, wire)
        #: True where it has loaded the processor, so that its forks need not.
        self.loaded = False
        #: Time of the last fork.
        self.used_at = time.monotonic()
        self._memory_bytes = memory_bytes
        self._parts = parts
        self._asking = Asking(wire)

    @property
    def lost(self) -> bool:
        """True when it no longer responds and must be replaced."""
        return self._asking.lost or self.ended

    def fork(self, room: Path, reads: Sequence[Path]) -> IOProcess:
        """Return a new IO process, which may change files below `room` and read the files `reads`.

        Raises `ServiceError` if none can be started.
        """
        self.used_at = time.monotonic()
        pid, end = self._asking.fork(ANSWER_S, room=str(room), reads=[str(path) for path in reads])
        process = IOProcess(self._asking, pid, end, Memory(self._memory_bytes), self._parts)
        process.room, process.reads, process.loaded = room, frozenset(reads), self.loaded
        return process


class IOProcess(Forked):
    """One IO process, used by one job at a time."""

    def __init__(self, parent: Asking, pid: int, end: socket.socket, memory: Memory, parts: frozenset[str]) -> None:
        super().__init__(parent, pid, end_to_process(end, memory))
        #: The memory for what it sends, in all conversations.
        self.memory = memory
        #: The parts of the sandbox around it.
        self.parts = parts
        #: The folder that the process may change, and further files that it may read.
        self.room = Path()
        self.reads: frozenset[Path] = frozenset()
        #: True once it has loaded the processor.
        self.loaded = False
        #: True while the process waits for its next job: then it may be used again.
        self.idle = True
        #: True when the process's job is over and it only has to clean up.
        self.settling = False
        #: Bytes by which the process's memory has grown since it was forked.
        self.grown_bytes = 0
        #: The tenant and the model, as JSON, that it serves.
        self.serves = "", ""
        #: The memory for the lines of its jobs; None before the first job with lines.
        self.lines: LineMemory | None = None
        #: Number of its jobs.
        self.jobs = 0
        self.born_at = self.idle_since = time.monotonic()

    @property
    def alive(self) -> bool:
        """True while an idle process still waits. An idle process sends nothing, so anything readable is its end."""
        return not self.ended and not self.wire.readable()

    def line_memory(self) -> LineMemory | None:
        """Return memory for the lines of its next job; None if none can be made, and the job then has no lines."""
        if self.lines is not None and self.lines.is_used:
            self._drop_lines()
        if self.lines is None:
            with suppress(OSError):
                self.lines = LineMemory()
        return self.lines

    def close(self) -> None:
        """End the process and free its resources here. The object must not be used afterwards."""
        super().close()
        self._drop_lines()

    def _drop_lines(self) -> None:
        if self.lines is not None:
            self.lines.close()
            self.lines = None


def _relay(process: subprocess.Popen[bytes]) -> None:
    """Log the output of libraries in the processes. It is quoted: no input of users may forge log lines."""
    assert process.stdout is not None  # noqa: S101  (opened with PIPE)
    with process.stdout as output:
        while line := output.readline(MAX_LINE_BYTES):
            if text := line.decode(errors="replace").rstrip():
                log.info("io.output", server=process.pid, text=text)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _until(seconds: float) -> Tick:
    """Return a tick that raises `TimeoutError` after `seconds`."""
    ends = time.monotonic() + seconds

    def tick() -> None:
        if time.monotonic() > ends:
            raise TimeoutError

    return tick
