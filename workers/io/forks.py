"""The worker's view of its fork server and of one IO process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from penstock.errors import OutOfMemory, PenstockError, ProcessorFailed, ServiceError
from penstock.workers.io import sandbox
from penstock.workers.io.channel import Channel, Gone, Memory, Message, Tick

#: How long the fork server may take to import everything, and afterwards to fork or to end a process.
START_S, ANSWER_S = 120.0, 30.0
#: How long it may take to end when its worker is done with it.
CLOSE_S = 10.0
#: What a process that shut its socket may take to end by itself: its own end says why.
GRACE_S = 1.0
#: Of a line that something prints in an IO process; what is longer becomes several.
MAX_SAID_BYTES = 8192

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ForkOptions:
    """What the fork server is told."""

    #: What a process may take on top of what it starts with.
    memory_bytes: int
    #: Modules to import before forking, beside our own.
    preload: Sequence[str] = ()
    #: Processors beside the installed ones, as `name -> module:class`.
    processors: Mapping[str, str] = field(default_factory=dict)
    log_level: str = "info"


class ForkServer:
    """A running fork server. Safe to use from many threads."""

    def __init__(self, options: ForkOptions) -> None:
        """Start it; it gets ready while the worker does other things."""
        self._options = options
        ours, its = socket.socketpair()
        self._channel = Channel(ours)
        self._lock = threading.Lock()
        self._ready = False
        self._lost = False
        with its, os.fdopen(os.dup(2)) as log_file:
            descriptors = [its.fileno(), log_file.fileno()]
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock.workers.io.server", *map(str, descriptors)],
                env=sandbox.environment(),
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # the terminal's Ctrl-C is the worker's business
            )
        threading.Thread(target=_relay, args=(self._process,), name="io-said", daemon=True).start()
        self._channel.send(
            "configure",
            memory_bytes=options.memory_bytes,
            preload=list(options.preload),
            processors=dict(options.processors),
            log_level=options.log_level,
        )

    @property
    def lost(self) -> bool:
        """Whether it does not answer any more: a new one is needed."""
        return self._lost

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def fork(self) -> IOProcess:
        """Return a new IO process; raise `ServiceError` if there is none to be had."""
        ours, its = socket.socketpair()
        try:
            with its:
                pid = self._ask("fork", its.fileno()).header["pid"]
        except BaseException:
            ours.close()
            raise
        return IOProcess(self, pid, ours, Memory(self._options.memory_bytes))

    def end(self, pid: int, grace_s: float) -> tuple[int | None, bool]:
        """End a process that does not end by itself in time.

        Returns its wait status, None if that cannot be known, and whether it had to be killed.
        """
        try:
            answer = self._ask("end", pid=pid, grace_s=grace_s).header
        except ServiceError:
            return None, False
        return answer["status"], answer["killed"]

    def close(self) -> None:
        """End it, and with it all its processes."""
        self._lost = True
        self._channel.shut()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(CLOSE_S)
        with self._lock:
            self._channel.close()

    def _ask(self, kind: str, descriptor: int | None = None, **fields: float) -> Message:
        with self._lock:
            if self._lost:
                raise ServiceError("the IO processes are gone")
            try:
                if not self._ready:
                    ready = self._channel.receive(tick=_until(START_S))
                    log.info("io.ready", pid=self.pid, network=ready.header.get("network"))
                    self._ready = True
                self._channel.send(kind, descriptor=descriptor, tick=_until(ANSWER_S), **fields)
                return self._channel.receive(tick=_until(ANSWER_S))
            except (Gone, TimeoutError, ProcessorFailed) as error:
                self._lost = True
                self._process.kill()
                raise ServiceError("the IO processes are gone") from error


class IOProcess:
    """One IO process, used by one job at a time."""

    def __init__(self, server: ForkServer, pid: int, end: socket.socket, memory: Memory) -> None:
        self.pid = pid
        self.memory = memory
        self.channel = Channel(end, memory)
        #: Whether it waits for the next job: then it may be used again.
        self.idle = True
        #: Whether its job is over and it only has to tidy up.
        self.settling = False
        #: By how much its memory has grown since it was forked.
        self.grown_bytes = 0
        #: What it ran last: that model's processor is at hand there.
        self.model = ""
        self.idle_since = time.monotonic()
        self._server = server
        self._end: tuple[int | None, bool] = None, False
        self._ended = False
        self._death: PenstockError | None = None
        self._lock, self._dying = threading.Lock(), threading.Lock()

    @property
    def alive(self) -> bool:
        """Whether an idle process still waits: it says nothing by itself, so that whatever can be read is its end."""
        return not self._ended and not self.channel.readable()

    def end(self, grace_s: float = 0.0) -> tuple[int | None, bool]:
        """End it, if it lives; see `ForkServer.end`. Any thread may do that; whoever waits for a message is told."""
        with self._lock:
            if not self._ended:
                self._ended = True
                self._end = self._server.end(self.pid, grace_s)
                self.channel.shut()
        return self._end

    def close(self) -> None:
        """End it and free what it holds here. Nobody may use it any more."""
        self.end()
        self.channel.close()
        self.memory.close()

    def death(self, doing: str) -> PenstockError:
        """Return why a process left that should not have. Of two threads that ask, the first says what it was doing."""
        with self._dying:
            self._death = self._death or self._cause(doing)
        return self._death

    def _cause(self, doing: str) -> PenstockError:
        status, killed = self.end(GRACE_S)
        log.warning("io.ended", pid=self.pid, status=status, killed=killed, doing=doing)
        if status is None:
            return ServiceError(f"the processor's process was lost while {doing}")
        if killed:
            return ProcessorFailed(f"the model's processor closed its connection while {doing}")
        if not os.WIFSIGNALED(status):
            code = os.waitstatus_to_exitcode(status)
            return ProcessorFailed(f"the model's processor ended its process (exit code {code}) while {doing}")
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL:
            return OutOfMemory(f"the processor's process was killed while {doing}: probably there was no memory left")
        return ProcessorFailed(f"the model's processor crashed ({_name(number)}) while {doing}")


def _relay(process: subprocess.Popen[bytes]) -> None:
    """Log what libraries print in the processes: quoted, so that no user's words become lines of the log."""
    assert process.stdout is not None  # noqa: S101  (it was asked for)
    with process.stdout as said:
        while line := said.readline(MAX_SAID_BYTES):
            if text := line.decode(errors="replace").rstrip():
                log.info("io.said", server=process.pid, text=text)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _until(seconds: float) -> Tick:
    """Return a tick that raises `TimeoutError` after so long."""
    ends = time.monotonic() + seconds

    def tick() -> None:
        if time.monotonic() > ends:
            raise TimeoutError

    return tick
