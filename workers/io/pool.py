"""The IO processes of a worker: started when they are needed, kept warm, replaced when they end or grow."""

from __future__ import annotations

import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import structlog
from pydantic import ValidationError

from penstock.errors import Drained, Interruption, PenstockError, ProcessorFailed, ServiceError
from penstock.models import CatalogueEntry, Model
from penstock.processors.registry import unusable
from penstock.workers.artifacts import Show, Sink, unseen
from penstock.workers.checkpoints import Checkpoints
from penstock.workers.engine.base import Check
from penstock.workers.io.channel import TICK_S, Channel, Message
from penstock.workers.io.forks import ForkOptions, ForkServer, IOProcess
from penstock.workers.io.session import (
    LOADING,
    Patience,
    RemotePrompts,
    RemoteSession,
    hear,
    hear_plan,
    settle,
    tell,
)
from penstock.workers.io.works import work_from_json, work_to_json
from penstock.workers.processing import NO_CHECKPOINTS, Session, Work

#: A process that nobody used for so long is ended.
IDLE_S = 60.0
#: The share of its memory that a process may still hold when it is idle. One that holds more is replaced.
KEPT_SHARE = 0.25
#: How long an import and the making of a JSON Schema may take, at most: a model's `io_timeout_s` may say less.
ENTRY_S = 120.0
#: Every prompt on its way holds a descriptor.
MAX_FILES = 65_536

log = structlog.get_logger(__name__)


class IOPool:
    """A `Processing` in which a processor can end its own job and nothing else."""

    def __init__(self, processes: int, options: ForkOptions, *, idle_s: float = IDLE_S) -> None:
        """Run at most so many processes, each for one job at a time. The first is forked for the first job."""
        _allow_files()
        self._processes = processes
        self._options = options
        self._idle_s = idle_s
        self._kept_bytes = KEPT_SHARE * options.memory_bytes
        self._lock = threading.Lock()
        self._change = threading.Condition(self._lock)
        #: The last used is at the end.
        self._idle: list[IOProcess] = []
        self._living = 0
        self._closed = False
        self._server = ForkServer(options)
        self._tidier = threading.Thread(target=self._end_idle, name="io-idle", daemon=True)
        self._tidier.start()

    @property
    def server(self) -> ForkServer:
        """The fork server as it is now; a lost one is replaced when a process is needed."""
        return self._server

    @contextmanager
    def open(
        self, work: Work, *, check: Check, say: Callable[[str], None], checkpoints: Checkpoints = NO_CHECKPOINTS,
        show: Show = unseen,
    ) -> Iterator[Session]:  # fmt: skip
        """Run the first half of a job in a process; see `Processing.open`."""
        patience = Patience(work.model.io_timeout_s, check)
        # Made now: as soon as the process is prepared it begins with its second half, and may write there.
        sink = Sink(work.folder, say=say, save=checkpoints.save, show=show)
        with self._using(work.model, check) as process, self._conversation(process, work, patience) as prompts:
            if hear(process, process.channel, patience, LOADING).kind != "loaded":
                raise ProcessorFailed("the processor's process sent nonsense before its plan")
            prepared = hear_plan(process, patience, checkpoints)
            yield RemoteSession(process, prompts, patience, prepared, sink, work.folder, say)

    def dummy(self, model: Model, folder: Path) -> Work:
        """Have the processor make its dummy request in a process; see `Processing.dummy`."""
        answer = self._ask(model, "dummy", Patience(model.io_timeout_s, lambda: None), folder=str(folder))
        try:
            work = work_from_json(model, answer.header)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProcessorFailed("the processor's process sent nonsense instead of a dummy") from error
        if not all(file.path.resolve().is_relative_to(folder.resolve()) for file in work.media.values()):
            raise ProcessorFailed("the processor's dummy names files outside its folder")
        return work

    def entry(self, model: Model, *, check: Check = lambda: None) -> CatalogueEntry:
        """Import the model's processor in a process; see `Processing.entry`."""
        try:
            answer = self._ask(model, "entry", Patience(min(ENTRY_S, model.io_timeout_s), check))
            said = CatalogueEntry.model_validate(answer.header.get("entry"))
        except Interruption:
            raise
        except PenstockError as error:
            return unusable(model, error.detail)
        except ValidationError:
            return unusable(model, "the processor's process sent nonsense instead of its schema")
        common = set(Model.model_fields) & set(CatalogueEntry.model_fields)
        return said.model_copy(update={name: getattr(model, name) for name in common})

    def close(self) -> None:
        """End all processes; jobs that still use one raise `Drained`."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            self._change.notify_all()
        for process in idle:
            process.close()
        self._tidier.join()
        self._server.close()

    @contextmanager
    def _conversation(self, process: IOProcess, work: Work, patience: Patience) -> Iterator[RemotePrompts]:
        """Send a job to a process; gives its prompts."""
        ours, its = socket.socketpair()
        channel = Channel(ours, process.memory)
        with closing(RemotePrompts(process, channel, patience)) as prompts:
            with its:
                tell(process, patience, "job", work.model, descriptor=its.fileno(), **work_to_json(work))
            yield prompts

    def _ask(self, model: Model, kind: str, patience: Patience, **fields: Any) -> Message:
        with self._using(model, patience.check) as process:
            tell(process, patience, kind, model, **fields)
            return hear(process, process.channel, patience, LOADING)

    @contextmanager
    def _using(self, model: Model, check: Check) -> Iterator[IOProcess]:
        """Hold a process; afterwards it goes back, if it is ready for another job, and is ended otherwise."""
        process = self._take(model, check)
        process.idle = process.settling = False
        process.model = model.name
        try:
            yield process
        finally:
            if process.settling:
                settle(process)
            self._give_back(process)

    def _take(self, model: Model, check: Check) -> IOProcess:
        while (process := self._next(model, check)) is not None:
            if process.alive:
                return process
            self._drop(process)
        try:
            try:
                return self._living_server().fork()
            except ServiceError:  # it had died, and nobody knew
                return self._living_server().fork()
        except BaseException:
            self._forget()
            raise

    def _next(self, model: Model, check: Check) -> IOProcess | None:
        """Return an idle process, one that has the model's processor at hand if there is one; None to fork another."""
        while True:
            check()
            with self._lock:
                if self._closed:
                    raise Drained
                if self._idle:
                    process = next((p for p in reversed(self._idle) if p.model == model.name), self._idle[-1])
                    self._idle.remove(process)
                    return process
                if self._living < self._processes:
                    self._living += 1
                    return None
                self._change.wait(TICK_S)

    def _living_server(self) -> ForkServer:
        with self._lock:
            if self._server.lost and not self._closed:
                log.warning("io.server_lost", pid=self._server.pid)
                self._server.close()
                self._server = ForkServer(self._options)
            return self._server

    def _give_back(self, process: IOProcess) -> None:
        process.idle_since = time.monotonic()
        with self._lock:
            if process.idle and process.grown_bytes <= self._kept_bytes and not self._closed:
                self._idle.append(process)
                self._change.notify_all()
                return
        self._drop(process)

    def _drop(self, process: IOProcess) -> None:
        process.close()
        self._forget()

    def _forget(self) -> None:
        with self._lock:
            self._living -= 1
            self._change.notify_all()

    def _end_idle(self) -> None:
        """End processes that nobody has used for a while, until the pool is closed."""
        while True:
            with self._lock:
                if self._closed:
                    return
                now = time.monotonic()
                left = [self._idle_s - (now - process.idle_since) for process in self._idle]
                old = [process for process, left_s in zip(self._idle, left, strict=True) if left_s <= 0]
                self._idle = [process for process in self._idle if process not in old]
                if not old:
                    self._change.wait(min(left, default=None))
            for process in old:
                self._drop(process)


def _allow_files() -> None:
    """Let this process hold as many files as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_FILES if hard == resource.RLIM_INFINITY else min(MAX_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
